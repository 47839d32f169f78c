"""The gate for people: report.md with its numbers, and plots by position and by layer."""

from collections.abc import Iterator
from pathlib import Path

from llmc.gate import sensitivity
from llmc.gate.plot import line_chart
from llmc.gate.record import Gate, Measurement, TextMeasurement

REPORT_NAME = "report.md"
PLOT_NAME = "kl-by-position.svg"


def write_report(
    gate: Gate, directory: Path, layers: sensitivity.LayerSensitivity | None = None
) -> None:
    """Write report.md and its plots: by position with a reference, by layer where it is known."""
    measurement = gate.measurement
    lines = [f"# Quality gate: {gate.verdict}", "", _subject(measurement), ""]
    lines += [*_table(gate), ""]
    if gate.failures:
        lines += ["Failed:", "", *(f"- {check}" for check in gate.failures), ""]
    series = {
        text.name: [
            (place * measurement.position_step, kl)
            for place, kl in enumerate(text.divergence.kl_by_position)
            if kl is not None
        ]
        for text in measurement.texts
        if text.divergence is not None
    }
    plot = directory / PLOT_NAME
    plot.unlink(missing_ok=True)
    if series:
        chart = line_chart("Divergence by position", "position in the window", "mean KL", series)
        plot.write_text(chart, encoding="utf-8")
        lines += [f"![mean KL by position]({PLOT_NAME})", ""]
    (directory / sensitivity.PLOT_NAME).unlink(missing_ok=True)
    if layers is not None:
        lines += sensitivity.write_sensitivity(layers, directory)
    for text in measurement.texts:
        lines += _worst(text)
    lines += [
        "## Data",
        "",
        *(f"- {text.name}: sha256 {text.sha256}" for text in measurement.texts),
    ]
    (directory / REPORT_NAME).write_text("\n".join(lines) + "\n", encoding="utf-8")


def summarize(gate: Gate) -> Iterator[str]:
    """Yield a line for each text, for a terminal."""
    for text in gate.measurement.texts:
        found = text.divergence
        if text.perplexity is None:
            yield f"{text.name}: no finite logits"
        elif found is None:
            yield f"{text.name}: perplexity {text.perplexity:.3f}, without a reference"
        else:
            yield (
                f"{text.name}: mean KL {found.mean_kl:.5f}, perplexity {text.perplexity:.3f}"
                f" ({found.perplexity_increase:+.2%} of {found.reference_perplexity:.3f}),"
                f" top-1 agreement {found.top1_agreement:.2%}"
            )


def _subject(measurement: Measurement) -> str:
    weights = measurement.quant_algo or "unquantized"
    kv_cache = measurement.kv_cache_quant_algo
    engine = f"{weights}, {measurement.dtype}" + (f", KV cache {kv_cache}" if kv_cache else "")
    reference = measurement.reference
    beside = "run alone" if reference is None else f"beside {reference.source} in {reference.dtype}"
    return (
        f"Engine `{measurement.engine[:12]}` ({engine}), {beside}, in windows of at most"
        f" {measurement.window_tokens} tokens. KL in nats a token, of engine from reference."
    )


def _table(gate: Gate) -> list[str]:
    rows = [
        "| text | tokens | mean KL | p99 | max | perplexity | reference's | increase | top-1 |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for text in gate.measurement.texts:
        perplexity = "none" if text.perplexity is None else f"{text.perplexity:.4g}"
        found = text.divergence
        if found is None:
            cells = ["", "", "", perplexity, "", "", ""]
        else:
            cells = [f"{kl:.3g}" for kl in (found.mean_kl, found.p99_kl, found.max_kl)]
            cells += [perplexity, f"{found.reference_perplexity:.4g}"]
            cells += [f"{found.perplexity_increase:+.2%}", f"{found.top1_agreement:.2%}"]
        rows.append(f"| {' | '.join([text.name, str(text.num_tokens), *cells])} |")
    limits = {check.metric: check for check in gate.checks}
    if "mean_kl" in limits:
        kl, increase = limits["mean_kl"].threshold, limits["perplexity_increase"].threshold
        top1 = limits["top1_agreement"].threshold
        rows.append(f"| *limit* | | {kl:.3g} | | | | | {increase:+.2%} | {top1:.2%} |")
    return rows


def _worst(text: TextMeasurement) -> list[str]:
    if text.divergence is None:
        return []
    rows = [
        f"## {text.name}: where they differ most",
        "",
        "| token | KL | after | reference | engine |",
        "|--:|--:|---|---|---|",
    ]
    for token in text.divergence.worst:
        words = map(_quote, (token.context, token.reference, token.candidate))
        rows.append(f"| {token.index} | {token.kl:.3g} | {' | '.join(words)} |")
    return [*rows, ""]


def _quote(text: str) -> str:
    """Return text as code in a Markdown table's cell, on one line."""
    shown = text.replace("\n", "⏎").replace("`", "'").replace("|", "\\|")
    return f"`{shown}`" if shown else ""
