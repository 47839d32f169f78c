"""The quality gate: an engine is run beside an unquantized one, and measured, before it is served.

| module | owns |
|---|---|
| metrics | KL divergence, loss and likeliest token of rows of logits |
| corpus | the texts, `texts/` those that come with llmc |
| measure | both engines over the texts, summed up |
| ranks | an engine of several ranks in one process |
| reference | the unquantized engine, made once a model and kept in the cache |
| thresholds | limits by quantization, and the verdict |
| record | measurement.json, gate.json, and whether an engine may be served |
| sensitivity | which layers a mixed engine was told apart by |
| report, plot | the same for people |
| step | the stage of a build that does it all |
"""
