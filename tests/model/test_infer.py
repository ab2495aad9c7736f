"""The compiled engine, the NumPy reference, the training network and transformers' Qwen3 are one function."""

from pathlib import Path

import numpy as np
import pytest
import torch
from kvc.diagnostics import KvcError
from kvc.model import weights as files
from kvc.model.infer.engine import Engine
from kvc.model.infer.generate import Sampling, generate
from kvc.model.infer.reference import Reference
from kvc.model.shape import Shape
from kvc.model.train.decode import Stepper, sample
from kvc.model.train.network import Decoder
from kvc.model.weights import Weights

TINY = Shape(vocabulary=96, hidden=32, layers=2, heads=4, kv_heads=2, head=16, inner=48, context=80)


@pytest.fixture(scope="module")
def weights() -> Weights:
    return files.random(TINY, 3)


@pytest.fixture(scope="module")
def network(weights: Weights) -> Decoder:
    """The training network with the dequantised weights."""
    made = Decoder(TINY)
    tensors = {n: torch.from_numpy(weights.dense(n)) for n in weights.matrices}
    tensors |= {n: torch.from_numpy(v.copy()) for n, v in weights.vectors.items()}
    made.load_state_dict(tensors)
    return made.eval()


def rows(*lengths: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    slots = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.concatenate([np.arange(n) for n in lengths])
    return (7 * positions + 13 * slots) % TINY.vocabulary, slots, positions


def test_engine_equals_reference_with_several_sequences(weights: Weights) -> None:
    tokens, slots, positions = rows(17, 9, 11)
    wanted = np.ones(len(tokens), bool)
    got = Engine(weights, 3).forward(tokens, slots, positions, wanted)
    np.testing.assert_allclose(got, Reference(weights, 3).forward(tokens, slots, positions, wanted), atol=2e-5)


@torch.no_grad()
def test_engine_equals_the_training_network_token_by_token(weights: Weights, network: Decoder) -> None:
    tokens, slots, positions = rows(21)
    engine = Engine(weights, 1)
    steps = [
        engine.forward(tokens[n : n + 1], slots[:1], positions[n : n + 1], np.ones(1, bool))[0] for n in range(21)
    ]  # fmt: skip
    want = network(torch.from_numpy(tokens)[None])[0].numpy()
    np.testing.assert_allclose(np.array(steps), want, atol=2e-5)


@torch.no_grad()
def test_network_equals_transformers(network: Decoder) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Qwen3ForCausalLM(TINY.qwen3()).eval()
    missing = theirs.load_state_dict(network.state_dict(), strict=False)
    assert missing.missing_keys in ([], ["lm_head.weight"]) and not missing.unexpected_keys
    tokens = torch.arange(30)[None] * 5 % TINY.vocabulary
    torch.testing.assert_close(network(tokens), theirs(tokens).logits, atol=2e-5, rtol=1e-4)


def test_greedy_answers_agree_and_do_not_depend_on_the_batch(weights: Weights, network: Decoder) -> None:
    prompts = [[1, 5, 9, 2], [1, 8, 2], [1, 30, 31, 32, 33, 2]]
    alone = [generate(Engine(weights, 1), [p], Sampling(most=12), [0])[0].tokens for p in prompts]
    together = [a.tokens for a in generate(Engine(weights, 2), prompts, Sampling(most=12), [0, 0, 0])]
    assert alone == together
    assert [tuple(a) for a in sample(network, prompts, 12, 3)] == alone


def test_a_step_at_a_time_gives_what_the_whole_sequence_gives(network: Decoder) -> None:
    tokens = torch.arange(24).view(2, 12) * 7 % TINY.vocabulary
    stepper = Stepper(network, 2, 12)
    with torch.no_grad():
        steps = torch.stack([stepper.logits(tokens[:, at], at) for at in range(12)], 1)
        torch.testing.assert_close(steps, network(tokens), atol=1e-5, rtol=1e-4)


def test_drawn_answers_follow_the_generator(network: Decoder) -> None:
    def drawn(seed: int) -> list[list[int]]:
        return sample(network, [[1, 5, 2], [1, 2]], 20, 3, 1.0, torch.Generator().manual_seed(seed))

    assert drawn(4) == drawn(4) != drawn(5)


def test_sampling_is_deterministic_under_a_seed(weights: Weights) -> None:
    warm = Sampling(temperature=1.0, most=20)
    once, again, other = (
        generate(Engine(weights, 1), [[1, 5, 2]], warm, [seed])[0].tokens for seed in (4, 4, 5)
    )  # fmt: skip
    assert once == again != other


def test_weight_file_round_trip_and_refusals(weights: Weights, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    files.save(weights, path)
    loaded = files.load(path)
    assert loaded.shape == TINY and loaded.digest
    for name, matrix in weights.matrices.items():
        np.testing.assert_array_equal(loaded.matrices[name], matrix)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(KvcError, match="KVC0803"):
        files.load(path)
    with pytest.raises(KvcError, match="KVC0803"):
        files.from_float(TINY, {})


def test_rows_that_do_not_fit_are_refused(weights: Weights) -> None:
    one = np.ones(1, np.int64)
    for tokens, positions in ((one * 96, one), (one, one * 80), (-one, one)):
        with pytest.raises(ValueError):
            Engine(weights, 2).forward(tokens, one, positions, one)
