"""The whole report of a run, as data."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from konvoi.analysis.diagnosis import diagnose
from konvoi.analysis.record import RunRecord
from konvoi.analysis.verdict import Verdict
from konvoi.report import sections
from konvoi.report.blocks import Note, Page, Section
from konvoi.report.lead import endings, lead, subtitle


def build(run: RunRecord) -> Page:
    verdict = diagnose(run)
    return Page(
        title=f"Training report: {run.name}",
        subtitle=subtitle(run),
        lead=lead(run, verdict),
        notes=[*endings(run), verdict_note(verdict)],
        sections=[section for module in section_modules() if (section := _section(module, run)).blocks],
        facts={"name": run.name, "status": run.status, "summary": run.summary, "verdict": verdict.as_json()},
    )


def section_modules() -> list[ModuleType]:
    """All files in sections/, in the order of the page."""
    names = [entry.name for entry in pkgutil.iter_modules(sections.__path__) if not entry.name.startswith("_")]
    modules = [importlib.import_module(f"konvoi.report.sections.{name}") for name in names]
    return sorted(modules, key=lambda module: (module.ORDER, module.__name__))


def verdict_note(verdict: Verdict) -> Note:
    kind = f" ({verdict.kind})" if verdict.kind else ""
    what = "can't tell" if verdict.verdict == "unknown" else f"{verdict.verdict}{kind}"
    advice = (
        f"Next: {item.words}: {item.before_seconds:.3g} -> {item.after_seconds:.3g} s ({item.how})"
        for item in verdict.advice
    )
    return Note(
        text=verdict.sentence,
        title=f"What bound it: {what}",
        details=[*verdict.evidence, *advice, *([f"How sure: {verdict.sure}"] if verdict.sure else [])],
    )


def _section(module: ModuleType, run: RunRecord) -> Section:
    name = module.__name__.rsplit(".", 1)[-1].replace("_", "-")
    return Section(name, module.TITLE, module.render(run))
