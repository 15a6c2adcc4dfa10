"""write_report: one self-contained HTML page about the run, and Markdown for the Prefect page.

The stage writes the report whether the gates opened or not. The page names what is missing, with the reason.
"""

from containers.contracts.configs.write_report import WriteReportConfig
from containers.contracts.names import CERTIFICATE_PAGE_FILE, REPORT_HTML_FILE, REPORT_MARKDOWN_FILE
from containers.contracts.outcome import Metric
from containers.document.html import page_html
from containers.document.markdown import page_markdown
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.report.certificate_page import certificate_page
from containers.report.inputs import load_report_inputs
from containers.report.run_page import run_page, short_page


def run(context: StageContext) -> tuple[Metric, ...]:
    """Write `report.html` and `report.md`; return the page's size and its number of figures.

    Raises:
        MissingPrerequisiteError: the inputs hold no pipeline record.
        BadDataError: the pipeline record cannot be read.
    """
    config = context.spec.config
    if not isinstance(config, WriteReportConfig):
        raise BadConfigError(f"write_report was given the config of `{config.stage}`.")
    inputs = load_report_inputs(context)
    for problem in inputs.problems:
        context.recorder.note(problem)
    html = page_html(run_page(inputs, title=config.title, num_samples=config.num_samples))
    page = context.output / REPORT_HTML_FILE
    page.write_text(html, encoding="utf-8")
    if inputs.reward_model is not None:
        certificate = page_html(certificate_page(inputs.reward_model, inputs.gate("reward_model")))
        (context.output / CERTIFICATE_PAGE_FILE).write_text(certificate, encoding="utf-8")
    short = page_markdown(short_page(inputs, title=config.title))
    (context.output / REPORT_MARKDOWN_FILE).write_text(short, encoding="utf-8")
    return (
        Metric(name="report_size", value=page.stat().st_size, unit="bytes"),
        Metric(name="num_figures", value=html.count("<figure>"), unit="figures"),
    )
