"""Turns the asks of one round into wire answers: finds who answers, checks, writes.

Owns the rule that nothing leaves unchecked and that all answers of a round are made at once. Knows
no transport and no terminal.
"""

import asyncio
import dataclasses
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import anyio
from pydantic import BaseModel

from antiphon.client.answers import Answerer, FirstOf, able, method_for
from antiphon.client.errors import AnswerFailed, InvalidResponse, Pass, Unanswered
from antiphon.client.values import (
    Accept,
    AnyAsk,
    Cancel,
    Decline,
    FormAsk,
    Roots,
    RootsAsk,
    SampleAsk,
    Sampled,
    UrlAsk,
)
from antiphon.errors import AnswerInvalid, UnsupportedForm
from antiphon.forms.schema import FlatSchema


async def answer_all(asks: Sequence[AnyAsk], answerer: Answerer | None) -> dict[str, Any]:
    """Answer every ask of a round concurrently (MRTR-C-16); all or nothing.

    Raises:
        Unanswered: Some asks have no answerer; names all of them.
        AnswerInvalid: An answer does not fit its form.
        AnswerFailed: Sampling or roots were refused or failed (MRTR-C-12).
    """
    for ask in asks:
        check(ask)
    answers: dict[str, Any] = {}
    failures: list[Exception] = []
    open_keys: list[str] = []

    async def one(ask: AnyAsk) -> None:
        try:
            answers[ask.key] = wire_answer(ask, await _ask(answerer, ask))
        except Pass:
            open_keys.append(ask.key)
        except Exception as error:  # noqa: BLE001 - the answerer is the user's; the first is raised
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for ask in asks:
            group.start_soon(one, ask)
    if failures:
        raise failures[0]
    if open_keys:
        raise Unanswered([ask.key for ask in asks if ask.key in open_keys])
    return {ask.key: answers[ask.key] for ask in asks}


def check(ask: AnyAsk) -> None:
    """Refuse a form that cannot be filled, before anybody is asked."""
    if isinstance(ask, FormAsk):
        try:
            FlatSchema.tolerant(ask.schema)
        except UnsupportedForm as error:
            raise InvalidResponse(
                f"ask {ask.key!r} has a form that cannot be filled: {error}"
            ) from error


async def _ask(answerer: Answerer | None, ask: AnyAsk) -> Any:
    if isinstance(answerer, FirstOf):
        for each in answerer.choose(ask):
            try:
                return await _ask(each, ask)
            except Pass:
                continue
        raise Pass
    if answerer is None or not able(answerer, ask):
        raise Pass
    method = method_for(answerer, ask)
    if inspect.iscoroutinefunction(method):
        return await method(ask)
    answer = await in_thread(method, ask)
    return await answer if inspect.isawaitable(answer) else answer


async def in_thread(function: Callable[..., Any], *args: object) -> Any:
    """Run a function that may wait for a person.

    The thread is a daemon: when the wait is given up, a prompt nobody answers must keep neither the
    loop nor the process.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        try:
            outcome = (function(*args), None)
        except StopIteration as error:
            outcome = (None, RuntimeError(f"an answerer raised {error!r}"))
        except BaseException as error:  # noqa: BLE001 - carried to the caller, whatever it is
            outcome = (None, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="antiphon-answer", daemon=True).start()
    return await future


def wire_answer(ask: AnyAsk, answer: Any) -> dict[str, Any]:
    """Write an answer as the protocol wants it, checked against what was asked.

    Raises:
        AnswerInvalid: It does not fit.
        AnswerFailed: The protocol has no way to say it.
    """
    match ask:
        case FormAsk():
            return _form(ask, answer)
        case UrlAsk():
            return _url(ask, answer)
        case SampleAsk():
            return _sample(ask, answer)
        case RootsAsk():
            return _roots(ask, answer)


def _form(ask: FormAsk, answer: Any) -> dict[str, Any]:
    match answer:
        case Decline():
            return {"action": "decline"}
        case Cancel():
            return {"action": "cancel"}
        case Accept(content):
            pass
        case _:
            content = answer
    form = FlatSchema.tolerant(ask.schema)
    # `accept` always carries content, at least an empty object (AMB-06).
    filled = form.fill_defaults(_content(ask, content))
    try:
        form.read(filled)
    except AnswerInvalid as error:
        raise AnswerInvalid(tuple(f"{ask.key}: {reason}" for reason in error.reasons)) from None
    return {"action": "accept", "content": filled}


def _content(ask: FormAsk, content: Any) -> Mapping[str, Any]:
    match content:
        case None:
            return {}
        case Mapping():
            return cast("Mapping[str, Any]", content)
        case BaseModel():
            return content.model_dump(mode="json", by_alias=True)
        case _ if dataclasses.is_dataclass(content) and not isinstance(content, type):
            return dataclasses.asdict(content)
        case _:
            raise AnswerInvalid((f"{ask.key}: {type(content).__name__} is no content of a form",))


def _url(ask: UrlAsk, answer: Any) -> dict[str, Any]:
    match answer:
        case Accept(content=None):
            return {"action": "accept"}
        case Decline():
            return {"action": "decline"}
        case Cancel():
            return {"action": "cancel"}
        case _:
            raise AnswerInvalid((f"{ask.key}: a URL is accepted, declined or cancelled",))


def _sample(ask: SampleAsk, answer: Any) -> dict[str, Any]:
    match answer:
        case str():
            return _sample(ask, Sampled(answer))
        case Sampled(content, model, stop_reason):
            block = {"type": "text", "text": content} if isinstance(content, str) else content
            return {
                "role": "assistant",
                "content": block,
                "model": model,
                "stopReason": stop_reason,
            }
        case Mapping():
            return dict(cast("Mapping[str, Any]", answer))
        case Decline() | Cancel():
            raise AnswerFailed(f"the completion for {ask.key!r} was refused; the call is abandoned")
        case _:
            raise AnswerInvalid((f"{ask.key}: {type(answer).__name__} is no completion",))


def _roots(ask: RootsAsk, answer: Any) -> dict[str, Any]:
    match answer:
        case Roots(uris):
            return {"roots": [{"uri": uri} for uri in uris]}
        case list() | tuple():
            return _roots(ask, Roots(cast("Sequence[str]", answer)))
        case Decline() | Cancel():
            raise AnswerFailed(f"the roots for {ask.key!r} were refused; the call is abandoned")
        case _:
            raise AnswerInvalid((f"{ask.key}: {type(answer).__name__} is no list of roots",))
