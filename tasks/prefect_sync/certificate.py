"""The certificate among the artifacts of a run: verdict, figures, and where its page lies."""

from pathlib import Path

from containers.contracts.certificate import Certificate
from containers.contracts.names import CERTIFICATE_FILE, CERTIFICATE_PAGE_FILE, StageName
from containers.formatting import markdown_text
from tasks.pages.markdown import reward_model_markdown
from tasks.prefect_sync.artifacts import show_markdown
from tasks.run.state import PipelineRun

KEY = "certificate"


def show_certificate(run: PipelineRun) -> None:
    """Attach the run's certificate; nothing where the run did not come so far."""
    verdict = next((found for found in reversed(run.gates) if found.certificate is not None), None)
    record = run.record_of(StageName.EVALUATE_REWARD_MODEL)
    if verdict is None or verdict.certificate is None or record is None:
        return
    folder = Path(verdict.certificate.path)
    certificate = Certificate.model_validate_json((folder / CERTIFICATE_FILE).read_bytes())
    file = f"output/{CERTIFICATE_PAGE_FILE}"
    address = run.tracking.file_url(record.mlflow_run_id, file) if record.status == "ran" else ""
    shown = reward_model_markdown(certificate, verdict, page=address)
    page = markdown_text(str(folder / CERTIFICATE_PAGE_FILE), limit=400)
    where = f"The certificate's page, on the machine of this run: {page}"
    show_markdown(KEY, f"{where}\n\n{shown}", description="The certificate, its gate, its page")
