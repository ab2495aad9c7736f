"""Text form of both IRs: printers and Lark parsers."""

from kvc.text.graph_parser import parse_graph
from kvc.text.graph_printer import print_graph, print_node, print_type
from kvc.text.kernel_parser import parse_kernel, parse_kernels
from kvc.text.kernel_printer import print_expr, print_kernel

__all__ = [
    "parse_graph",
    "parse_kernel",
    "parse_kernels",
    "print_expr",
    "print_graph",
    "print_kernel",
    "print_node",
    "print_type",
]
