"""The executor: requests in, tokens out, over any engine. Imports no builder.

| module | owns |
|---|---|
| request | what a client asks and gets back |
| engine, engines/ | the protocol of a loaded model and its implementations |
| batch | the ragged batch of one step |
| sequence | one request in flight |
| kv_blocks | which KV block belongs to whom |
| scheduler | who runs in the next step |
| sampling | logits to tokens |
| text | tokens to text, stop strings |
| tokenizer | text to tokens and back |
| inflight | one iteration, without threads |
| executor | the loop, its queues and its callbacks |
| session | engine directory to a ready executor |
"""

__all__: list[str] = []
