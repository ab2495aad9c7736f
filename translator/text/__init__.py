"""Text form of both IRs: printers and Lark parsers."""

from kvc.text.kernel_parser import parse_kernel, parse_kernels
from kvc.text.kernel_printer import print_expr, print_kernel

__all__ = ["parse_kernel", "parse_kernels", "print_expr", "print_kernel"]
