"""Makes what README and docs show of the simulation's own figures: `python scripts/figures.py`, some minutes.

It writes docs/explanation/published.md (every published figure beside the simulated one), the table of README
that sums it up, and docs/assets/what-fits.png. tests/validation/test_figures.py holds them to the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from textwrap import dedent

from hisparse_sim.validation.published.compare import Published, compare
from hisparse_sim.validation.published.rows import Row, summary
from hisparse_sim.validation.published.text import number

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "published.md"
PICTURE = ROOT / "docs" / "assets" / "what-fits.png"
README = ROOT / "README.md"
BEGIN, END = "<!-- made by scripts/figures.py -->\n", "<!-- to here -->\n"

SOURCES = {
    "openhands_glm53_8xh200": "vLLM blog, 2026-09-08: GLM-5.3 on 8xH200, 13-turn conversations",
    "hisparse_sglang_8xrtxpro6000_glm_32k2k": "SGLang pull 33075: HiSparse on 8 RTX PRO 6000",
    "preemption_watermark_qwen7b_gb200": "vLLM pull 44594: Qwen2.5-7B on a GB200, memory short",
    "single_request_tpot": "recipes of vLLM and SGLang: GLM-5.2 on 8xH200, 1 to 16 clients",
    "locality": "arXiv 2608.07009 and a replay in SGLang: rows that a hot buffer misses or holds",
    "calculator_vllm": "vLLM's HiSparse calculator, whose arithmetic is copied",
}
"""README's words for each source, in its order."""
WORDS = {
    "concurrency": "requests that fit",
    "min_host_gib": "host memory",
    "running_mean": "requests running",
    "mean_tpot_ms": "time per output token",
    "total_tok_s_per_gpu": "total tokens/s per GPU",
    "output_tok_s": "output tokens/s",
    "preemptions": "preemptions",
    "miss_rate": "share missed",
    "hit_rate": "share held",
}


def summed(rows: Sequence[Row]) -> str:
    """README's table, from its second line on."""
    order = list(SOURCES)
    lines, before = ["|---|---|--:|--:|\n"], ""
    for each in sorted(summary(rows), key=lambda errors: order.index(errors.source)):
        errors = [f"{100 * (e or 0):.1f} %" for e in (each.median_abs, each.max_abs)]
        source, before = ("" if each.source == before else SOURCES[each.source]), each.source
        cells = (source, f"{WORDS[each.metric]} ({each.rows})", *errors)
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def page(found: Published) -> str:
    """docs/explanation/published.md."""
    parts = [
        "# Published figures beside simulated ones\n\n"
        "Made by `scripts/figures.py` from `hisparse-sim validate published`; the tests hold it to the\n"
        "code. The error is simulated / published - 1. A range is what comes out over all that a source\n"
        "leaves open. The published tables are in `configs/validation`, each with its source. What to make\n"
        "of them is in [How true is it?](how-true.md)\n"
    ]
    for source, grouped in groupby(found.rows, key=lambda row: row.source):
        rows = list(grouped)
        parts.append(f"\n## {SOURCES[source]}\n\n{dedent(found.about[source]).replace('``', '`')}\n\n")
        parts.append("| case | figure | published | simulated | error | range |\n|---|---|--:|--:|--:|---|\n")
        parts += [_line(row) for row in rows]
        cases: dict[str, list[str]] = {}
        for row in rows:
            cases.setdefault(row.note, []).append(row.case)
        cases.pop("", None)
        parts += ["\n"] if cases else []
        for note, of in cases.items():
            of = list(dict.fromkeys(of))
            parts.append(f"- {of[0]}{f' and {len(of) - 1} more' if of[1:] else ''}: {note}\n")
    return "".join(parts)


def _line(row: Row) -> str:
    simulated = "-" if row.simulated is None else number(row.simulated)
    error = "-" if row.rel_error is None else f"{row.rel_error:+.1%}"
    span = "" if row.low is None or row.high is None else f"{number(row.low)} to {number(row.high)}"
    cells = (row.case, WORDS[row.metric], number(row.published), simulated, error, span)
    return f"| {' | '.join(cells)} |\n"


def with_table(readme: str, rows: Sequence[Row]) -> str:
    """README with its table made again."""
    before, rest = readme.split(BEGIN)
    old, after = rest.split(END)
    return before + BEGIN + old[: old.index("|---")] + summed(rows) + END + after


def picture(rows: Sequence[Row]) -> None:
    """What fits over the length of a request, and the published study at 74k to 86k tokens."""
    import numpy as np
    from matplotlib.figure import Figure

    import hisparse_sim as hs
    from hisparse_sim.report.sheet import BLUE, GREY, PAGE_IN, VERMILLION, style

    with style():
        figure = Figure(figsize=(PAGE_IN, 2.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        contexts = [1024 * int(k) for k in np.geomspace(8, 1024, 29)]
        table = hs.estimate("glm-5.3", "8xh200", contexts, kv_cache_dtype="fp8").table
        modes = (("hisparse", "HiSparse", BLUE, "o"), ("resident", "resident or offload", VERMILLION, "s"))
        for mode, label, colour, _ in modes:
            found = table[table["mode"] == mode]
            left.plot(found["context_tokens"], found["requests"], color=colour, label=label)
        left.axvspan(74_160, 86_058, color=GREY, alpha=0.6, lw=0)
        left.text(92_000, 0.55, "published study", transform=left.get_xaxis_transform(), color="#555555")
        left.set_xscale("log", base=2)
        left.set_xticks(
            ticks := [8192 * 2**n for n in range(8)], [f"{t // 1024}k" for t in ticks[:-1]] + ["1M"]
        )
        left.set(title="Requests that run at once, estimated", xlabel="tokens of a request", ylim=(0, None))
        left.legend()

        study = [r for r in rows if r.source.startswith("openhands") and r.metric == "total_tok_s_per_gpu"]
        for mode, label, colour, marker in (modes[0], ("offload", "offload", VERMILLION, "s")):
            of = [row for row in study if row.case.startswith(mode)]
            clients = [int(row.case.split(", ")[1].split()[0]) for row in of]
            simulated = [row.simulated or 0.0 for row in of]
            right.plot(clients, simulated, color=colour, label=f"{label}, simulated")
            right.plot(clients, [r.published for r in of], marker, ms=4, mfc="none", color=colour,
                       label=f"{label}, published")  # fmt: skip
        right.set(title="Total tokens/s per GPU, 74k to 86k tokens", xlabel="clients", ylim=(0, None))
        right.set_xticks([1, 8, 16, 24, 32])
        right.legend()
        figure.suptitle("GLM-5.3 on 8xH200", fontsize=8)
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(PICTURE, dpi=200)


def main() -> None:
    """Make all three."""
    found = compare()
    PAGE.write_text(page(found), encoding="utf-8")
    README.write_text(with_table(README.read_text(encoding="utf-8"), found.rows), encoding="utf-8")
    picture(found.rows)


if __name__ == "__main__":
    main()
