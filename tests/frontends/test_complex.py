"""Complex numbers and Fourier transforms: captured as pairs of reals, they mean what eager computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kvc.diagnostics import KvcError
from kvc.frontends.fx.capture import capture
from kvc.interpret import interpret
from kvc.lower import lower
from kvc.optable import fft
from kvc.pipeline_graph import plan
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self, fn: Callable[..., Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Tensor) -> Tensor:
        return self.fn(*args)


def both(fn: Callable[..., Tensor], *args: Tensor) -> tuple[Tensor, Tensor]:
    """What the captured graph means in float64, and what eager gives in float64."""
    captured = capture(Model(fn), args)
    spec, _ = lower(captured.graph)
    assert not plan(captured.graph).fallbacks
    got = interpret(spec, {o.name: captured.feed()[o.name] for o in spec.inputs})
    return next(iter(got.values())), fn(*(x.double() if x.is_floating_point() else x for x in args))


def check(fn: Callable[..., Tensor], *args: Tensor) -> None:
    got, want = both(fn, *args)
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def x(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def c(t: Tensor) -> Tensor:
    """A complex tensor made in the graph."""
    return torch.complex(t, t.flip(-1) * 0.5)


REAL = torch.view_as_real
TRANSFORMS = {
    "fft": lambda t: REAL(torch.fft.fft(t)),
    "fft of complex, dim": lambda t: REAL(torch.fft.fft(c(t), dim=1, norm="ortho")),
    "ifft": lambda t: REAL(torch.fft.ifft(c(t), dim=0)),
    "fft2 real part": lambda t: torch.fft.fft2(t).real,
    "fftn of two dims": lambda t: torch.fft.fftn(t, dim=(1, 2)).real,
    "nested": lambda t: torch.fft.fft(torch.fft.fft(t, dim=-1), dim=-2).imag,
    "rfft": lambda t: REAL(torch.fft.rfft(t, norm="forward")),
    "rfft padded": lambda t: REAL(torch.fft.rfft(t, n=12)),
    "fft cut": lambda t: REAL(torch.fft.fft(t, n=5)),
    "rfftn": lambda t: REAL(torch.fft.rfftn(t)),
    "irfft even": lambda t: torch.fft.irfft(c(t), n=12),
    "irfft odd": lambda t: torch.fft.irfft(c(t), n=13, norm="ortho"),
    "irfft default": lambda t: torch.fft.irfft(c(t)),
    "irfft2": lambda t: torch.fft.irfft2(c(t)),
    "hfft": lambda t: torch.fft.hfft(c(t)),
    "ihfft": lambda t: torch.fft.ihfft(t).imag,
    "stft-like filter": lambda t: torch.fft.irfft(torch.fft.rfft(t, n=14) * torch.fft.rfft(t[0, 0], n=14), n=14),
    "shifted": lambda t: REAL(torch.fft.fftshift(torch.fft.fft2(t))),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    check(TRANSFORMS[name], x(3, 4, 7))


@pytest.mark.parametrize("merged", [True, False])
def test_long_transforms_in_two_stages(monkeypatch: pytest.MonkeyPatch, merged: bool) -> None:
    monkeypatch.setattr(fft, "DIRECT", 8)
    monkeypatch.setattr(fft, "MERGED", fft.MERGED if merged else 0)
    check(lambda t: REAL(torch.fft.fft(c(t), dim=1)), x(2, 24, 3))
    check(lambda t: REAL(torch.fft.rfft(t, n=36)), x(2, 3, 30))
    check(lambda t: torch.fft.irfft(c(t), n=30), x(2, 16))
    check(lambda t: torch.fft.irfft(c(t), n=15, dim=0), x(5, 4))
    check(lambda t: torch.fft.hfft(c(t), n=20), x(2, 9))
    check(lambda t: REAL(torch.fft.fft(t)), x(2, 13))  # a prime stays one product


def test_transforms_without_a_table_of_bearable_size_are_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fft, "DIRECT", 4)
    monkeypatch.setattr(fft, "LONGEST", 6)
    with pytest.raises(AssertionError):
        both(lambda t: torch.fft.fft(t).real, x(2, 7))


ARITHMETIC = {
    "product": lambda a, b: REAL(c(a) * c(b)),
    "product with a real": lambda a, b: REAL(c(a) * b),
    "a real times": lambda a, b: REAL(b * c(a)),
    "scaled": lambda a, b: REAL(c(a) * 2.5),
    "sum with a real": lambda a, b: REAL(c(a) + b),
    "difference": lambda a, b: REAL(c(a) - c(b)),
    "number minus": lambda a, b: REAL(1.5 - c(a)),
    "quotient": lambda a, b: REAL(c(a) / c(b)),
    "quotient by a real": lambda a, b: REAL(c(a) / b),
    "real over complex": lambda a, b: REAL(b / c(a)),
    "conjugate": lambda a, b: REAL(c(a).conj() * c(b)),
    "length": lambda a, b: c(a).abs(),
    "angle": lambda a, b: c(a).angle(),
    "exponential": lambda a, b: REAL(torch.exp(c(a))),
    "polar": lambda a, b: REAL(torch.polar(a.abs(), b)),
    "matrix product": lambda a, b: REAL(c(a) @ c(b).mT),
    "einsum": lambda a, b: REAL(torch.einsum("bij,bkj->bik", c(a), c(b))),
    "joined": lambda a, b: REAL(torch.cat([c(a), torch.complex(b, b)], dim=-1)),
    "stacked, summed": lambda a, b: REAL(torch.stack([c(a), c(b)], dim=1).sum(1)),
    "views": lambda a, b: REAL(c(a).transpose(0, 1).reshape(4, -1)[:, None, 1:].expand(4, 2, -1).unbind(1)[1]),
    "rotary": lambda a, b: REAL(torch.view_as_complex(a.reshape(3, 4, 3, 2)) * torch.polar(b[..., :3], a[..., :3])),
    "chosen": lambda a, b: REAL(torch.where(a > 0, c(a), c(b))),
    "widened": lambda a, b: REAL(a.to(torch.complex64) + c(b)),
}  # fmt: skip


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str) -> None:
    fn = ARITHMETIC[name]
    if name == "widened":
        got, want = both(fn, x(3, 4, 6), x(3, 4, 6, seed=1))
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
        return
    check(fn, x(3, 4, 6), x(3, 4, 6, seed=1))


def test_complex_tensors_do_not_cross_the_boundary() -> None:
    with pytest.raises(KvcError, match="view_as_real") as returned:
        capture(Model(torch.fft.fft), (x(4),))
    with pytest.raises(KvcError) as given:
        capture(Model(lambda t: REAL(t * t)), (c(x(4)),))
    assert returned.value.code == given.value.code == "KVC0201"
