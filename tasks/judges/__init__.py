"""Judges that no stage can ask, since a stage has no network: the orchestrator collects their verdicts for it."""
