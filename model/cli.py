"""`kvc model`: data, tokenizer, training and evaluation of the models that write kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from kvc.arch import DEFAULT_ARCH
from kvc.cli_common import ArchOpt, ExecutorOpt, JobsOpt, JsonOpt, SeedOpt, TargetOpt, guarded, print_json
from kvc.diagnostics import KvcError

app = typer.Typer(help="Models that write kernels.", no_args_is_help=True, rich_markup_mode=None)
train_app = typer.Typer(help="Train a model.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(train_app, name="train")

OutFile = Annotated[Path, typer.Option("--out", "-o", help="File to write.")]
OutFolder = Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")]
RecipeOpt = Annotated[Path, typer.Option("--recipe", help="A YAML file; kvc's own are in model/recipes.")]
LoraOpt = Annotated[int, typer.Option("--lora", min=-1, help="Rank of adapters; -1: the recipe's, 0: all weights.")]
BaseOpt = Annotated[str, typer.Option("--base", help="Instead of the recipe's: zero, a folder or a hub id.")]


@app.command()
@guarded
def data(
    vault: Annotated[Path, typer.Option("--vault", help="Folder of shards that `kvc vault build` wrote.")],
    out: OutFile,
    each: Annotated[int, typer.Option("--each", min=1, help="Kernels of a spec and target that are kept.")] = 4,
    known: Annotated[Path | None, typer.Option("--known", help="Examples that exist already, left out here.")] = None,
    jobs: JobsOpt = 2,
) -> None:
    """Make training examples of a vault's verified kernels."""
    from kvc.model.dataset import COLUMNS, build, keys
    from kvc.vault.shards import rows

    built = build(rows(vault, COLUMNS), out, each, jobs, keys(known) if known else None)
    print("\n".join(f"{count:>8} {what}" for what, count in built.lost.most_common()))


@app.command()
@guarded
def augment(
    examples: Annotated[Path, typer.Option("--examples", help="A .jsonl.gz file, or a folder of them.")],
    out: OutFile,
    count: Annotated[int, typer.Option("--count", min=1, help="Examples to make.")] = 10_000,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Stop after so long.")] = 3600,
    each: Annotated[int, typer.Option("--each", min=1, help="Kernels of a spec and target.")] = 2,
    heldout: Annotated[bool, typer.Option("--heldout", help="Of held-out sets of operations, to ask about.")] = False,
    seed: SeedOpt = 0,
) -> None:
    """Make examples of changed specs, with the kernels that rules write for them (not executed)."""
    from dataclasses import asdict

    from kvc.model.augment import augment as made_of
    from kvc.model.dataset import read, write

    split = "heldout" if heldout else "train"
    number = write(out, (asdict(e) for e in made_of(list(read(examples)), count, seconds, seed, each, split)))
    print(f"{number} examples")


@app.command()
@guarded
def helpers(
    vault: Annotated[Path, typer.Option("--vault", help="Folder of shards.")],
    out: OutFile,
    most: Annotated[int, typer.Option("--most", help="Records that are looked at.")] = 4000,
) -> None:
    """Collect the helper functions that kernels share, which frames name instead of repeating."""
    from kvc.model.dataset import canonical_sources, function_sources
    from kvc.model.languages import merged, mine_helpers, table_helpers

    mined = mine_helpers(canonical_sources(vault, most)), mine_helpers(function_sources())
    found = merged(table_helpers(), *mined)
    out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


@app.command()
@guarded
def tokens(
    examples: Annotated[Path, typer.Option("--examples", help="A .jsonl.gz file, or a folder of them.")],
    out: OutFolder,
    vocabulary: Annotated[int, typer.Option("--vocabulary", min=300, max=65535)] = 4096,
    longest: Annotated[int, typer.Option("--longest", help="Tokens of a sequence; longer ones are left out.")] = 4096,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="A tokenizer.json to use, for a model that goes on learning.")
    ] = None,
    as_json: JsonOpt = False,
) -> None:
    """Train the tokenizer on examples, and tokenise them: OUT/tokenizer.json and OUT/corpus.npz."""
    from kvc.model.train.prepare import prepare

    summary = prepare(examples, out, vocabulary, longest, tokenizer)
    if as_json:
        print_json(summary)
    else:
        print("\n".join(f"{name}: {value}" for name, value in summary.items()))


@train_app.command()
@guarded
def sft(
    recipe: RecipeOpt,
    data_: Annotated[Path, typer.Option("--data", help="From zero: the folder of `kvc model tokens`; else examples.")],
    out: OutFolder,
    base: BaseOpt = "",
    seconds: Annotated[
        float, typer.Option("--seconds", help="Stop after so long, schedule finished (0: no limit).")
    ] = 0,
    resume: Annotated[Path | None, typer.Option("--resume", help="A checkpoint folder to go on from.")] = None,
    answers: Annotated[int, typer.Option("--answers", help="Held-out prompts to answer at the end.")] = 0,
    device: Annotated[str, typer.Option("--device", help="cuda or cpu.")] = "cuda",
    keep: Annotated[float, typer.Option("--keep", min=0, help="Seconds between checkpoints (0: none).")] = 0,
    lora: LoraOpt = -1,
) -> None:
    """Supervised fine-tuning, from zero or of a pretrained base, by one recipe."""
    from dataclasses import replace

    from kvc.model.train.recipe import read

    made = read(recipe)
    made = replace(made, base=base) if base else made
    made = replace(made, lora=replace(made.lora, rank=lora)) if lora >= 0 else made
    if made.base == "zero":
        from kvc.model.train.corpus import Corpus
        from kvc.model.train.zero import Run, train

        corpus = Corpus.load(data_ / "corpus.npz")
        train(Run(made, corpus, data_ / "tokenizer.json", out, seconds, resume, answers, device, keep))
        return
    from kvc.model.train.pretrained import sft as sft_pretrained

    sft_pretrained(made, data_, out, seconds, resume)


@train_app.command()
@guarded
def memory(recipe: RecipeOpt, lora: LoraOpt = -1) -> None:
    """What SFT and GRPO by a recipe take of one GPU's memory, reckoned by the recipe's shape."""
    from dataclasses import replace

    from kvc.model.train import memory as reckoned
    from kvc.model.train.recipe import read

    made = read(recipe)
    made = replace(made, lora=replace(made.lora, rank=lora)) if lora >= 0 else made
    print(f"{made.shape.parameters / 1e6:.0f} M parameters")
    print(f"sft: {reckoned.sft(made).text()}")
    print(f"rl:  {reckoned.rl(made).text()}")


@train_app.command()
@guarded
def check(
    recipe: RecipeOpt,
    device: Annotated[str, typer.Option("--device", help="cuda or cpu.")] = "cuda",
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="For the judges of a target.")] = 90,
    jobs: JobsOpt = 2,
) -> None:
    """Whether this machine has what training and judging need: everything is tried. Exit code 1 where it has not."""
    from kvc.model.train.check import check as found_by
    from kvc.model.train.recipe import read

    found = found_by(read(recipe), device, jobs, seconds)
    print_json(found)
    if not found["ok"]:
        raise typer.Exit(1)


@train_app.command()
@guarded
def session(
    recipe: RecipeOpt,
    data_: Annotated[Path, typer.Option("--data", help="The folder of `kvc model tokens`.")],
    out: OutFolder,
    state: Annotated[Path, typer.Option("--state", help="Folder of what a killed session goes on from.")],
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Training; then held-out prompts are answered.")],
    after: Annotated[
        float, typer.Option("--after", min=0, help="Seconds in which those are written and judged.")
    ] = 120,
    answers: Annotated[int, typer.Option("--answers", min=0, help="Held-out prompts to answer.")] = 400,
    samples: Annotated[int, typer.Option("--samples", min=0, help="Drawn answers beside each greedy one.")] = 3,
    probe: Annotated[float, typer.Option("--probe", min=0, help="Seconds between small evaluations (0: none).")] = 0,
    keep: Annotated[float, typer.Option("--keep", min=0, help="Seconds between checkpoints.")] = 60,
    device: Annotated[str, typer.Option("--device", help="cuda or cpu.")] = "cuda",
    executor: ExecutorOpt = "sim",
    jobs: JobsOpt = 2,
) -> None:
    """Train from zero, answer held-out prompts and judge the answers meanwhile; OUT gets a few small files."""
    from kvc.model.train.recipe import read
    from kvc.model.train.session import Session, run

    print_json(
        run(
            Session(read(recipe), data_, out, state, seconds, after, answers, samples, probe, keep=keep, jobs=jobs,
                    device=device, executor=executor)
        )
    )  # fmt: skip


@app.command()
@guarded
def quantise(
    run: Annotated[
        Path, typer.Option("--run", help="What training wrote: a checkpoint (or checkpoint/) and tokenizer.json.")
    ],
    out: OutFolder,
) -> None:
    """Make the int8 weights of a training run: OUT/model.safetensors and OUT/tokenizer.json."""
    from kvc.model import weights
    from kvc.model.shape import Shape
    from kvc.model.train import checkpoint

    arrays, state = checkpoint.load(checkpoint.place(run) or run)
    out.mkdir(parents=True, exist_ok=True)
    weights.save(weights.from_float(Shape.from_json(state["shape"]), arrays), out / "model.safetensors")
    (out / "tokenizer.json").write_text((run / "tokenizer.json").read_text(encoding="utf-8"), encoding="utf-8")
    print(f"{(out / 'model.safetensors').stat().st_size / 2**20:.1f} MiB after step {state['step']}")


@app.command()
@guarded
def card(
    run: Annotated[
        Path, typer.Option("--run", help="What a session or run left: checkpoint, log.jsonl, answers.jsonl.")
    ],
    out: OutFile,
    weights: Annotated[Path | None, typer.Option("--weights", help="Folder of `kvc model quantise`.")] = None,
    data_: Annotated[Path | None, typer.Option("--data", help="JSON that `kvc model tokens --json` printed.")] = None,
    rl_log: Annotated[Path | None, typer.Option("--rl", help="rl.jsonl of `kvc model train rl`.")] = None,
) -> None:
    """Write the model card of a training run."""
    from kvc.model.card import Run, lines_of
    from kvc.model.card import card as text_of

    counts = json.loads(data_.read_text(encoding="utf-8")) if data_ else {}
    file = weights / "model.safetensors" if weights else None
    out.write_text(text_of(Run.of(run), file, counts, lines_of(rl_log) if rl_log else ()), encoding="utf-8")


@train_app.command()
@guarded
def rl(
    recipe: RecipeOpt,
    data_: Annotated[Path, typer.Option("--data", help="Examples: a .jsonl.gz file, or a folder of them.")],
    out: OutFolder,
    base: Annotated[str, typer.Option("--base", help="The folder that SFT wrote, or a hub id.")],
    seconds: Annotated[float, typer.Option("--seconds", help="Stop after so long (0: no limit).")] = 0,
    executor: ExecutorOpt = "sim",
    device: Annotated[str, typer.Option("--device", help="cuda or cpu.")] = "cuda",
    state: Annotated[Path | None, typer.Option("--state", help="Folder of what a killed run goes on from.")] = None,
    patience: Annotated[float, typer.Option("--patience", min=1, help="Seconds for the verdicts of a step.")] = 60,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, help="Judges at a time (0: the recipe's).")] = 0,
    lora: LoraOpt = -1,
) -> None:
    """Reinforcement learning: GRPO whose reward is execution."""
    from dataclasses import replace

    from kvc.model.train import checkpoint
    from kvc.model.train.recipe import read

    made = read(recipe)
    made = replace(made, lora=replace(made.lora, rank=lora)) if lora >= 0 else made
    if checkpoint.place(Path(base)) is not None:
        from kvc.model.train.grpo import Run, train

        train(Run(made, Path(base), data_, out, seconds, executor, device, state, patience, jobs))
        return
    from kvc.model.train.pretrained import grpo

    grpo(made, base, data_, out, executor)


@app.command(name="eval")
@guarded
def evaluate(
    emitter: Annotated[
        str, typer.Option("--emitter", help="model, model:PATH[+ADAPTER] or openai:URL#NAME.")
    ] = "model",
    vault: Annotated[Path | None, typer.Option("--vault", help="Held-out specs of these shards.")] = None,
    kernelbench: Annotated[list[str] | None, typer.Option("--problem", help="KernelBench problem files.")] = None,
    written: Annotated[Path | None, typer.Option("--answers", help="Judge answers.jsonl of a training run.")] = None,
    target: TargetOpt = "hip",
    arch: ArchOpt = DEFAULT_ARCH,
    most: Annotated[int, typer.Option("--most", min=1, help="Specs at most.")] = 200,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Answers to each spec.")] = 1,
    executor: ExecutorOpt = "sim",
    seed: SeedOpt = 0,
    jobs: JobsOpt = 2,
    as_json: JsonOpt = False,
) -> None:
    """Pass@k of a model's own kernels: held-out specs, whole KernelBench problems, or answers on file."""
    from kvc.emitter import external_emitter
    from kvc.model import evaluate as ev
    from kvc.model.dataset import COLUMNS
    from kvc.model.train.reward import Judge
    from kvc.vault.shards import rows

    result: dict[str, object] = {}
    with Judge(jobs, executor) as judge:
        if written is not None:
            lines = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
            for name in sorted({r["target"] for r in lines}):
                scored = ev.judge_written([r for r in lines if r["target"] == name][:most], judge, seed)
                result[f"answers {name}"] = ev.report(scored)
        if vault is not None or kernelbench:
            made = external_emitter(emitter, target)
            if made is None:
                raise KvcError("KVC0105", f"no emitter {emitter!r}", hint="model, model:PATH or openai:URL#NAME")
            if vault is not None:
                asked = ev.questions(rows(vault, COLUMNS), target, most, seed)
                result[f"heldout {target}"] = ev.report(
                    list(ev.evaluate(made, asked, judge, samples, seed, lambda t: typer.echo(t, err=True)))  # type: ignore[arg-type]
                )
            for path in kernelbench or ():
                found = ev.problem(path, made, target, arch, judge)  # type: ignore[arg-type]
                typer.echo(f"{found.name}: {found.passed} of {found.kernels} {found.problem}", err=True)
                result[found.name] = found
    _show(result, as_json)


@app.command()
@guarded
def suite(
    name: Annotated[str, typer.Argument(help="kernelbench, torch2hip, tritonbench-g, rocmbench or vault-heldout.")],
    root: Annotated[Path, typer.Option("--root", help="Your checkout of the suite; of vault-heldout: shards.")],
    out: OutFolder,
    emitter: Annotated[
        str, typer.Option("--emitter", help="Who writes: rules (gold for suites of scripts), model, model:PATH, ...")
    ] = "rules",
    target: TargetOpt = "hip",
    arch: ArchOpt = DEFAULT_ARCH,
    levels: Annotated[str, typer.Option("--levels", help="Levels of KernelBench.")] = "1,2",
    only: Annotated[list[str] | None, typer.Option("--only", help="A task by key or name; may be repeated.")] = None,
    every: Annotated[int, typer.Option("--every", min=1, help="Each so-many-th task.")] = 1,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Tasks at most.")] = None,
    samples: Annotated[
        int, typer.Option("--samples", min=1, help="Answers to a task (vault-heldout and suites of scripts).")
    ] = 1,
    full_size: Annotated[bool, typer.Option("--full-size", help="Sizes as they are, not those that simulate.")] = False,
    executor: ExecutorOpt = "sim",
    seed: SeedOpt = 0,
    jobs: JobsOpt = 2,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds a task.")] = 600,
    as_json: JsonOpt = False,
) -> None:
    """A suite, every kernel by one author: Pass@k or Corr@k with 95 % intervals, gold against gold first, and which
    tasks cannot tell right from wrong."""
    from kvc.bench.problems import numbers
    from kvc.model import scripts
    from kvc.model.suites import Report, Request, run

    def say(text: str) -> None:
        typer.echo(text, err=True)

    if name in scripts.SCRIPTS:
        author = "gold" if emitter == "rules" else emitter
        asked = scripts.Request(
            name, root, out, author, arch, executor, samples, every, limit, frozenset(only or ()), seed, timeout
        )
        found: Any = scripts.Report(**scripts.run(asked, say))
    elif name == "vault-heldout":
        found = _heldout(root, out, emitter, target, executor, limit or 200, samples, seed, jobs)
    else:
        request = Request(
            name, root, out, emitter, target, arch, executor, tuple(sorted(numbers(levels))), every, limit,
            frozenset(only or ()), full_size, seed, jobs, timeout,
        )  # fmt: skip
        found = Report(**run(request, say, show_progress=not as_json))
    if as_json:
        print_json(found.to_json())
    else:
        print(found.text())


def _heldout(
    vault: Path, out: Path, emitter: str, target: str, executor: str, most: int, samples: int, seed: int, jobs: int
) -> Any:
    """Figures of a model on held-out specs; OUT/results.jsonl gets every answer's outcome."""
    from dataclasses import asdict

    from kvc.emitter import external_emitter
    from kvc.model import evaluate as ev
    from kvc.model.dataset import COLUMNS
    from kvc.model.train.reward import Judge
    from kvc.vault.shards import rows

    made: Any = external_emitter(emitter, target)
    if made is None:
        raise KvcError("KVC0105", f"no emitter {emitter!r}", hint="model, model:PATH or openai:URL#NAME")
    out.mkdir(parents=True, exist_ok=True)
    scored = []
    with Judge(jobs, executor) as judge, (out / "results.jsonl").open("w", encoding="utf-8") as stream:
        asked = ev.questions(rows(vault, COLUMNS), target, most, seed)
        for one in ev.evaluate(made, asked, judge, samples, seed, lambda t: typer.echo(t, err=True)):
            scored.append(one)
            stream.write(json.dumps(asdict(one)) + "\n")
            stream.flush()
    return ev.report(scored)


def _show(result: dict[str, object], as_json: bool) -> None:
    from dataclasses import asdict

    from kvc.model.evaluate import Problem, Report, wilson

    problems = [v for v in result.values() if isinstance(v, Problem)]
    if as_json:
        print_json({k: asdict(v) for k, v in result.items()})  # type: ignore[call-overload]
        return
    for name, value in result.items():
        if isinstance(value, Report):
            print(f"{name}: {value.text()}")
    if problems:
        whole = sum(p.whole for p in problems)
        low, high = wilson(whole, len(problems))
        print(f"KernelBench whole, first try: {whole} of {len(problems)} ({100 * low:.1f} to {100 * high:.1f} %)")
