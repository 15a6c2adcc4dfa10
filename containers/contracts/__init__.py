"""What crosses the boundary between orchestrator and stage container: frozen pydantic models, nothing else.

`names` (stages, programs' folders), `hardware` (GPU profile, NCCL and torch settings, what was measured inside),
`configs` (one model per stage), `spec` (what goes in), `outcome` (what comes out), `manifest` (what an
artifact is), `records` (the tables that stages write and the report reads).

May import stdlib and pydantic only, so that reading the contract never imports torch.
"""
