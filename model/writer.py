"""Who writes the text: the shipped model on CPU, a transformers checkpoint, or a server with the OpenAI interface.

A writer turns a prompt into a text, deterministically under a seed where the runtime allows it. It knows nothing of
tasks or frames.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from kvc.diagnostics import KvcError
from kvc.model.infer.generate import Sampling

SHIPPED = Path(__file__).parent / "weights"
#: A checkpoint that was trained on the frame says so in this file; other models are told about it in words.
MARK = "kvc.json"


class Writer(Protocol):
    """`identity` names the weights: it goes into the lock. `knows_frames`: trained on prompts as they are.
    `reads_verdicts`: whether verdicts of earlier tries mean something to it."""

    @property
    def identity(self) -> str: ...

    @property
    def knows_frames(self) -> bool: ...

    @property
    def reads_verdicts(self) -> bool: ...

    def write(self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]) -> list[str]:
        """A text for each prompt."""
        ...

    def fits(self, prompt: str) -> bool:
        """Whether a prompt leaves room for an answer."""
        ...

    def count(self, text: str) -> int:
        """Tokens of a text; words where the writer's tokens are not known."""
        ...


class SmallWriter:
    """The shipped model or one like it: a folder with model.safetensors (int8) and tokenizer.json. Threads have an
    engine each and share the weights. `together`: prompts that are answered side by side (kvc.emitter.Batched)."""

    knows_frames = True

    @property
    def reads_verdicts(self) -> bool:
        """Not unless it was trained over several turns: supervised data holds no verdicts."""
        return self._turns > 1

    def __init__(self, folder: Path, together: int = 8) -> None:
        from kvc.model import weights
        from kvc.model.tokenizer import Tokenizer

        for name in ("model.safetensors", "tokenizer.json"):
            if not (folder / name).is_file():
                raise KvcError("KVC0101", f"{folder} holds no {name}", hint="train one: kvc model train sft")
        self.weights = weights.load(folder / "model.safetensors")
        self.tokenizer = Tokenizer(folder / "tokenizer.json")
        if len(self.tokenizer) > self.weights.shape.vocabulary:
            raise KvcError("KVC0803", f"{folder}: {len(self.tokenizer)} tokens, but the model has fewer")
        mark = folder / MARK
        self._turns = int(json.loads(mark.read_text()).get("turns", 1)) if mark.is_file() else 1
        self.together = together
        self.identity = self.weights.digest
        self._local = threading.local()

    def _engine(self, slots: int) -> Any:
        """This thread's engine, for one sequence or for `together`: a cache is 50 MB a sequence."""
        from kvc.model.infer.generate import runner

        engines: dict[int, Any] = self._local.__dict__.setdefault("engines", {})
        if slots not in engines:
            engines[slots] = runner(self.weights, slots)
        return engines[slots]

    def fits(self, prompt: str) -> bool:
        return len(self.tokenizer.prompt(prompt)) < self.weights.shape.context * 3 // 4

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode(text))

    def write(self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]) -> list[str]:
        from kvc.model.constrain import guards
        from kvc.model.infer.generate import generate

        tokens = [self.tokenizer.prompt(p) for p in prompts]
        engine = self._engine(1 if len(prompts) == 1 else self.together)
        return [
            self.tokenizer.decode(a.tokens)
            for a in generate(engine, tokens, sampling, seeds, guards(prompts, self.tokenizer))
        ]


class TransformersWriter:
    """A causal LM by folder or hub id, with an optional LoRA adapter; on a GPU where there is one."""

    reads_verdicts = True

    def __init__(self, name: str, adapter: str = "") -> None:
        try:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            raise KvcError("KVC0501", f"{error.name} is not installed", hint="pip install 'kvc[model]'") from None
        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(name)
            model: Any = AutoModelForCausalLM.from_pretrained(name, dtype="auto")
            if adapter:
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, adapter)
        except ImportError as error:
            raise KvcError("KVC0501", f"{error.name} is not installed", hint="pip install 'kvc[train]'") from None
        except (OSError, ValueError) as error:
            raise KvcError("KVC0101", f"{name}: {str(error).splitlines()[0]}") from None
        self._model = model.to(device).eval()
        self._lock = threading.Lock()
        self.identity = _identity(name, adapter)
        self.knows_frames = any((Path(p) / MARK).is_file() for p in (name, adapter) if p)

    def fits(self, prompt: str) -> bool:
        most = getattr(self._model.config, "max_position_embeddings", 1 << 15)
        return len(self._tokenizer(prompt).input_ids) < most // 2

    def count(self, text: str) -> int:
        return len(self._tokenizer(text).input_ids)

    def write(self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]) -> list[str]:
        return [self._one(p, sampling, s) for p, s in zip(prompts, seeds, strict=True)]

    def _one(self, prompt: str, sampling: Sampling, seed: int) -> str:
        import torch

        if not self.knows_frames and self._tokenizer.chat_template:
            messages = [{"role": "user", "content": prompt}]
            prompt = str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        given = self._tokenizer(prompt, return_tensors="pt").to(self._model.device)
        warm = sampling.temperature > 0
        how = {"do_sample": warm, **({"temperature": sampling.temperature, "top_p": sampling.top_p} if warm else {})}
        with self._lock, torch.no_grad():
            torch.manual_seed(seed)
            out = self._model.generate(**given, max_new_tokens=sampling.most, **how)
        return str(self._tokenizer.decode(out[0][given.input_ids.shape[1] :], skip_special_tokens=True))


def _identity(name: str, adapter: str) -> str:
    """A digest of the weight files where they are here, else the names."""
    digest = hashlib.sha256()
    for part in (name, adapter):
        files = sorted(Path(part).glob("*.safetensors")) if part and Path(part).is_dir() else []
        for file in files:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        if not files:
            digest.update(part.encode())
    return digest.hexdigest()[:16]


class ServerWriter:
    """`URL#NAME`: a server that speaks the OpenAI interface (vLLM, llama.cpp and kin; kvc.model.chat.Service says what
    may follow). The key is OPENAI_API_KEY's."""

    knows_frames = False
    reads_verdicts = True

    def __init__(self, address: str) -> None:
        from kvc.model.chat import Chat, Service

        self.chat = Chat(Service.parse(address))
        self.identity = f"{self.chat.service.model}@{self.chat.service.url}"

    def fits(self, prompt: str) -> bool:
        return True

    def count(self, text: str) -> int:
        return len(text.split())

    def write(self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]) -> list[str]:
        """KVC0503 and KVC0504 as kvc.model.chat.Chat.ask."""
        return [
            self.chat.ask([{"role": "user", "content": prompt}], sampling, seed).text
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]


@dataclass(frozen=True)
class Recorded:
    """A writer of given texts, in turn: for tests, and to judge answers that were written elsewhere."""

    texts: tuple[str, ...]
    identity: str = "recorded"
    knows_frames: bool = True
    reads_verdicts: bool = True

    @cached_property
    def _left(self) -> list[str]:
        return list(self.texts)[::-1]

    def fits(self, prompt: str) -> bool:
        return True

    def count(self, text: str) -> int:
        return len(text.split())

    def write(self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]) -> list[str]:
        return [self._left.pop() if self._left else "" for _ in prompts]


def is_small(folder: Path) -> bool:
    """Whether a folder holds a model of the shipped kind."""
    path = folder / "model.safetensors"
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        head = stream.read(min(length, 4 << 20))
    try:
        return "kvc-" in json.loads(head).get("__metadata__", {}).get("format", "")
    except ValueError:
        return False


def writer(argument: str) -> Writer:
    """The writer of what follows `model:`: "" (the shipped one), a folder or a hub id, with "+ADAPTER"."""
    name, _, adapter = argument.partition("+")
    folder = Path(name) if name else SHIPPED
    if not adapter and (not name or is_small(folder)):
        return SmallWriter(folder)
    return TransformersWriter(name, adapter)
