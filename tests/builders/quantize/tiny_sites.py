"""Sites of random numbers with a few large input channels, as real activations have them."""

import numpy as np

from llmc.builders.quantize.site import InputStats, Module, Site


def make_stats(num_in: int, *, num_tokens: int = 256, seed: int = 0) -> InputStats:
    """Return statistics of correlated tokens in which every 16th channel is ten times larger."""
    generator = np.random.default_rng(seed)
    mixing = generator.standard_normal((num_in, num_in)) / np.sqrt(num_in)
    tokens = generator.standard_normal((num_tokens, num_in)) @ (np.eye(num_in) + mixing)
    tokens[:, ::16] *= 10
    rows = tokens.astype(np.float32)
    return InputStats(
        num_tokens=num_tokens,
        amax=np.abs(rows).max(axis=0),
        mean_abs=np.abs(rows).mean(axis=0),
        rows=rows,
        hessian=rows.T @ rows / np.float32(num_tokens),
    )


def make_site(
    names: tuple[str, ...] = ("transformer.layers.0.mlp.fc", "transformer.layers.0.mlp.gate"),
    *,
    num_out: int = 64,
    num_in: int = 128,
    parts: tuple[int, ...] | None = None,
    norm: str | None = "transformer.layers.0.post_layernorm",
    seed: int = 0,
) -> Site:
    """Return a site with a weight [num_out, num_in] for each name."""
    generator = np.random.default_rng(seed + 1)
    stats = make_stats(num_in, seed=seed)
    modules = []
    for name in names:
        weight = (0.05 * generator.standard_normal((num_out, num_in))).astype(np.float32)
        modules.append(
            Module(
                name=name,
                weight=weight,
                parts=parts or (num_out,),
                output_amax=float(np.abs(stats.rows @ weight.T).max()),
            )
        )
    norm_weight = 1 + 0.1 * generator.standard_normal(num_in)
    return Site(
        modules=tuple(modules),
        stats=stats,
        norm=norm,
        norm_weight=norm_weight.astype(np.float32) if norm else None,
    )
