"""Measurements made up for a test."""

from llmc.gate.record import Divergence, Measurement, ReferenceFacts, TextMeasurement, WorstToken


def text(
    name: str = "prose",
    *,
    mean_kl: float = 0.001,
    perplexity_increase: float = 0.001,
    top1_agreement: float = 0.99,
    worst: str = "the end",
) -> TextMeasurement:
    """Return a text that any quantization of eight bits passes with."""
    return TextMeasurement(
        name=name,
        sha256="a" * 64,
        num_tokens=100,
        nonfinite_tokens=0,
        flat_tokens=0,
        perplexity=20.0,
        divergence=Divergence(
            reference_perplexity=20.0 / (1 + perplexity_increase),
            perplexity_increase=perplexity_increase,
            mean_kl=mean_kl,
            p99_kl=2 * mean_kl,
            max_kl=3 * mean_kl,
            top1_agreement=top1_agreement,
            kl_by_position=(mean_kl, None, 3 * mean_kl, 0.0),
            worst=(WorstToken(index=7, kl=mean_kl, context=worst, reference=" a", candidate=" b"),),
        ),
    )


def measurement(
    *texts: TextMeasurement, engine: str = "e" * 64, quant_algo: str | None = None
) -> Measurement:
    """Return the measurement of an engine over `texts`, by default one."""
    return Measurement(
        engine=engine,
        quant_algo=quant_algo,
        kv_cache_quant_algo=None,
        dtype="bfloat16",
        reference=ReferenceFacts(source="model", dtype="float32", key="k" * 64),
        window_tokens=64,
        position_step=16,
        texts=texts or (text(),),
    )
