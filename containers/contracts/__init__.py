"""Data that crosses the container boundary: frozen pydantic models, nothing else.

`names` (stages, programs' folders), `hardware` (GPU profile, NCCL and torch settings, what the stage measured),
`configs` (one model per stage), `spec` (input of a stage), `outcome` (its result or failure), `manifest` (files of an
artifact), `records` (the tables that stages write and the report reads).

Imports stdlib and pydantic only, so that reading the contract never imports torch.
"""
