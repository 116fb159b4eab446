"""The service as an ASGI app: the API, the page, and what watches over them asks for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.staticfiles import StaticFiles

from konvoi import __version__
from konvoi.bundle.interfaces import Classifier, Translator
from konvoi.errors import UserError
from konvoi.serve import docs
from konvoi.serve.documents import parts_of, put_together
from konvoi.serve.gate import Gate
from konvoi.serve.limits import MAX_CLASSES, Limits
from konvoi.serve.messages import (
    ClassGuess,
    ClassifyAnswer,
    LimitsEntry,
    ModelsAnswer,
    Question,
    Sentence,
    State,
    StreamEnd,
    TranslateAnswer,
    TranslateQuestion,
)
from konvoi.serve.refusal import ErrorAnswer, Refusal
from konvoi.serve.security import LOOPBACK_NAMES, Security
from konvoi.serve.service import Service, Way, chosen

HERE = Path(__file__).parent
PAGE = HERE / "page"
NDJSON = "application/x-ndjson"
MAX_PROBLEMS = 5
TRANSLATES, CLASSIFIES = "translates", "knows pictures"


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    words = {
        401: "The token is missing or wrong.",
        403: "A page of another site may not ask.",
        404: "There is no such model.",
        408: "The request did not arrive in time.",
        413: "The body is too large.",
        421: "Asked under a name that is not this machine's.",
        422: "The request is not understood, or asks for too much.",
        429: "Too many requests at once; come again after Retry-After.",
        503: "It took too long, or the service is ending.",
    }
    return {status: {"model": ErrorAnswer, "description": words[status]} for status in statuses}


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Here = Annotated[Service, Depends(_service)]
ModelName = Annotated[str | None, Query(description="A name of /api/models; else the first classifier.")]
NumClasses = Annotated[int, Query(ge=1, le=MAX_CLASSES, description="How many of the likeliest classes.")]

# Gate checks the token; this tells the description of it.
WITH_TOKEN = [Depends(HTTPBearer(auto_error=False))]
api = APIRouter(prefix="/api", responses=_errors(401, 403, 421))
measures = APIRouter(responses=_errors(401, 403, 421))
watch = APIRouter(responses=_errors(421))
pages = APIRouter()
ASKING = _errors(404, 408, 413, 422, 429, 503)


@api.get("/models")
async def models(service: Here) -> ModelsAnswer:
    """What can be asked here, and how much at a time."""
    return ModelsAnswer(models=list(service.entries.values()), limits=LimitsEntry())


@api.post("/translate", responses=ASKING)
async def translate(question: TranslateQuestion, service: Here) -> TranslateAnswer:
    """Translate a text, or sentences."""
    began_at = time.perf_counter()
    name = chosen(question.model, service.translators, TRANSLATES)
    deadline_at = _deadline(service.limits.request_seconds)
    found = [one async for one in service.translated(name, parts_of(question), _way(question), deadline_at)]
    seconds = time.perf_counter() - began_at
    return TranslateAnswer(model=name, text=put_together(found), sentences=found, seconds=seconds)


STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "A Sentence a line, then StreamEnd; or ErrorAnswer, where it could not be finished."}
}


@api.post("/translate/stream", response_class=StreamingResponse, responses={**ASKING, **STREAM})
async def translate_stream(question: TranslateQuestion, service: Here) -> StreamingResponse:
    """The same, a sentence as soon as it is done: JSON objects, one a line."""
    name = chosen(question.model, service.translators, TRANSLATES)
    deadline_at = _deadline(service.limits.stream_seconds)
    sentences = service.translated(name, parts_of(question), _way(question), deadline_at)
    return StreamingResponse(_lines(name, sentences), media_type=NDJSON)


async def _lines(name: str, sentences: AsyncIterator[Sentence]) -> AsyncIterator[str]:
    began_at = time.perf_counter()
    try:
        async for sentence in sentences:
            yield sentence.model_dump_json() + "\n"
        yield StreamEnd(model=name, seconds=time.perf_counter() - began_at).model_dump_json() + "\n"
    except Refusal as refusal:
        yield refusal.content.model_dump_json() + "\n"


BINARY = {"type": "string", "format": "binary"}
PICTURE = {
    "required": True,
    "content": {
        "image/*": {"schema": BINARY},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {"picture": BINARY},
                "required": ["picture"],
                "additionalProperties": False,
            }
        },
    },
}


@api.post("/classify", responses=ASKING, openapi_extra={"requestBody": PICTURE})
async def classify(
    request: Request, service: Here, model: ModelName = None, num_classes: NumClasses = 5
) -> ClassifyAnswer:
    """Say what is in a picture: the file itself as the body, or as the field `picture` of a form."""
    began_at = time.perf_counter()
    name = chosen(model, service.classifiers, CLASSIFIES)
    deadline_at = _deadline(service.limits.request_seconds)
    guesses = await service.classified(name, await _picture(request), num_classes, deadline_at)
    found = [ClassGuess.of(guess) for guess in guesses]
    return ClassifyAnswer(model=name, guesses=found, seconds=time.perf_counter() - began_at)


@watch.get("/health")
async def health() -> State:
    """Whether it is alive."""
    return State()


@watch.get("/ready", responses=_errors(503))
async def ready(service: Here) -> State:
    """Whether it takes requests: the models are loaded, and it was not told to end."""
    if service.is_ending:
        raise Refusal(503, "the service is ending")
    return State()


@measures.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: Here) -> Response:
    """Requests, seconds, sizes of batches and queues, for Prometheus."""
    return Response(service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


@pages.get("/")
async def index() -> FileResponse:
    return FileResponse(PAGE / "index.html")


@pages.get("/docs")
async def documentation(request: Request) -> HTMLResponse:
    return HTMLResponse(docs.page(request.app.openapi()))


@pages.get("/docs.css")
async def documentation_style() -> FileResponse:
    return FileResponse(HERE / "docs.css", media_type="text/css")


def create_app(
    translators: Sequence[Translator] = (),
    classifiers: Sequence[Classifier] = (),
    *,
    token: str | None = None,
    names: Collection[str] = (),
    limits: Limits | None = None,
) -> FastAPI:
    """The models stay the caller's to close, once the app has ended. Without a token it answers to the names of this
    machine, and to `names`."""
    service = Service(limits or Limits())
    for translator in translators:
        service.add_translator(translator)
    for classifier in classifiers:
        service.add_classifier(classifier)
    # FastAPI's own pages load their scripts from elsewhere.
    app = FastAPI(title="Konvoi", version=__version__, docs_url=None, redoc_url=None, lifespan=_lifespan)
    app.state.service = service
    app.add_middleware(Gate, service=service, security=Security(token, LOOPBACK_NAMES.union(names)))
    for router in (api, measures):
        app.include_router(router, dependencies=WITH_TOKEN if token else ())
    app.include_router(watch)
    app.include_router(pages, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=PAGE, check_dir=False))
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await asyncio.to_thread(app.state.service.close)


async def _picture(request: Request) -> bytes:
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        picture = await request.body()
    else:
        try:
            async with request.form(max_files=1, max_fields=1) as form:
                field = form.get("picture")
                picture = b"" if field is None or isinstance(field, str) else await field.read()
        except (MultiPartException, HTTPException):
            raise Refusal(422, "the form cannot be read", hint="send one file as its field picture") from None
    if not picture:
        raise Refusal(422, "there is no picture", hint="send a file as the body, or as the field picture of a form")
    return picture


def _way(question: Question) -> Way:
    return Way(question.beam, question.num_best, question.attention)


def _deadline(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return error.response()


async def _user_error(request: Request, error: Exception) -> Response:
    """What a model cannot work with, as a file that is no picture."""
    assert isinstance(error, UserError)
    return Refusal(422, error.problem, error.hint).response()


async def _not_valid(request: Request, error: Exception) -> Response:
    """What is wrong and where, without what was sent."""
    assert isinstance(error, RequestValidationError)
    problems = [f"{_place(one['loc'])}: {one['msg']}" for one in error.errors()[:MAX_PROBLEMS]]
    return Refusal(422, "; ".join(problems), hint="/docs describes what can be sent").response()


def _place(location: Sequence[str | int]) -> str:
    """sentences.3, from ("body", "sentences", "sentences", 3): the second is the kind of question."""
    inside = location[2:] if location[0] == "body" else location[1:]
    return ".".join(map(str, inside)) or "body"


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods; bytes that are no text."""
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.BAD_REQUEST:
        return Refusal(422, "the body cannot be read", hint="send JSON, as UTF-8").response()
    return Refusal(error.status_code, error.detail, headers=error.headers).response()


HANDLERS = {
    Refusal: _refused,
    UserError: _user_error,
    RequestValidationError: _not_valid,
    HTTPException: _http_error,
}
