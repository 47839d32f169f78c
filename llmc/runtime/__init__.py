"""The executor: requests in, tokens out, over any engine. Imports no builder.

| module | owns |
|---|---|
| request, admission | what a client asks and gets back; what is refused |
| batch, engine, engines/ | the ragged batch, the protocol of a loaded model, one module a target |
| comm, worker | collectives between the ranks of an engine; several ranks as one engine |
| microbatch | a step in parts, for the stages of a pipeline |
| rank_files | whether all ranks hold one engine |
| watch | which ranks are alive |
| orchestrator, rank | ranks that another process schedules; one of them |
| comm_check | what `llmc doctor mpi` runs |
| sequence | one request in flight |
| kv_blocks | which KV block belongs to whom |
| scheduler | who runs in the next step |
| sampling, nucleus | logits to tokens; one restricted random draw |
| text | tokens to text as it may be shown: stop strings |
| tokenizer, pieces, chat_template | text to tokens and back |
| inflight | one iteration, without threads |
| executor, mailbox | the loop, its clients, their responses |
| session | engine directory to a ready executor |
| triton_* | what the emitted Triton models share |
"""

__all__: list[str] = []
