"""What a served repository says of itself on its metrics port: the executor's state, in numbers."""

import re
import urllib.error
import urllib.request

from llmc.errors import ServeError

_SERIES = re.compile(r"^(?P<family>\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)$")


def read_metrics(url: str, *, timeout_seconds: float = 5.0) -> dict[tuple[str, str], float]:
    """Return llmc's metrics at `url` (host:port of metrics), by family and kind.

    For example ("nv_trt_llm_kv_cache_block_metrics", "used"). Triton's own series are not in it.
    Raises: ServeError when the server is not there.
    """
    try:
        with urllib.request.urlopen(f"http://{url}/metrics", timeout=timeout_seconds) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
        raise ServeError(f"{url}: no metrics: {error}") from error
    metrics: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        match = _SERIES.match(line)
        if match is None or not match["family"].startswith(("nv_trt_llm_", "nv_llm_")):
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
        kinds = [value for key, value in labels.items() if key not in ("model", "version")]
        metrics[match["family"], " ".join(kinds)] = float(match["value"])
    return metrics
