"""What the doctor can find: an id that never changes, the reason and the cure."""

from collections.abc import Mapping
from dataclasses import dataclass

from antiphon.apps.lint.findings import RULES
from antiphon.apps.lint.findings import Finding as LintFinding


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something that may be wrong with a server."""

    reason: str
    cure: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A complaint that holds, and where."""

    id: str
    where: str
    """The tool, the setting or the line."""

    reason: str
    cure: str

    def as_json(self) -> dict[str, str]:
        """Return it for a program."""
        return {"id": self.id, "where": self.where, "reason": self.reason, "cure": self.cure}


COMPLAINTS: Mapping[str, Complaint] = {
    # keys and workers
    "keys-made": Complaint(
        "no keys are set, so that each process makes its own: no other process can go on with a "
        "call, and after a restart nothing in the store can be opened",
        "make a key with `antiphon keygen` and set ANTIPHON_KEYS, or a file of keys, everywhere",
    ),
    "keys-left-over": Complaint(
        "more than three keys open tokens: keys that were replaced long ago are still good for "
        "whoever has them",
        "remove keys whose last token, call and task have expired",
    ),
    "key-in-source": Complaint(
        "a key stands in the source, where everybody who reads the repository has it",
        "take it out, replace it, and set ANTIPHON_KEYS or a file of keys",
    ),
    # the store against the promises
    "store-in-memory": Complaint(
        "there are keys or processes to share, and the store is in memory: a token is redeemed "
        "once and an effect happens once in each process, and both are forgotten at its end",
        "set store= or ANTIPHON_STORE: sqlite:///... on one machine, postgresql://... on several",
    ),
    "store-on-one-machine": Complaint(
        "several machines cannot share a SQLite file: each would redeem a token once",
        "use postgresql://...",
    ),
    "store-may-forget": Complaint(
        "tools have effects, and a failover or restore of Redis may forget what had happened. The "
        "store can't notice that: an effect could happen twice",
        "use sqlite:/// or postgresql:// for effects that must not happen twice, or replace the "
        "keys after a failover",
    ),
    "store-without-tasks": Complaint(
        "a tool needs tasks or decisions of others, and this store keeps none: the server refuses "
        "to start",
        "use sqlite:///, postgresql:// or the memory store",
    ),
    "tasks-never-run": Complaint(
        'tasks are left to workers (task_runs="workers"), and no other process sees the store',
        "use a store that processes share, or leave task_runs= out",
    ),
    "store-unreachable": Complaint(
        "the store cannot be opened, and nothing is served without it",
        "see the reason; check URL, rights and network",
    ),
    "clocks-differ": Complaint(
        "the clock of this machine and that of the store differ by five seconds or more: tokens "
        "and leases end too early or too late, and from a minute on nothing is served",
        "set the clocks of both machines, for instance with NTP",
    ),
    "replication-may-forget": Complaint(
        "tools have effects, and PostgreSQL does not wait for its standbys or its disk: after a "
        "failover or a crash, effects of the last moments are uncertain",
        "set synchronous_standby_names, and synchronous_commit to on, in PostgreSQL",
    ),
    "pooler-lends-connections": Complaint(
        "between this server and PostgreSQL a pooler lends connections for one transaction, "
        "through which no notifications pass: workers find tasks only by looking",
        "give servers and workers of tasks a direct connection, or a pool of sessions",
    ),
    # time and rounds
    "ttl-below-think-time": Complaint(
        "a person has less than two minutes to answer before the token expires and the call with "
        "it",
        "raise ttl= of the tool or Seal(ttl=...); ten minutes is the default",
    ),
    "ttl-beyond-deadline": Complaint(
        "the token is meant to live longer than its whole call, and ends with that",
        "raise deadline= or Limits(call=...), or lower ttl=",
    ),
    "rounds-above-clients": Complaint(
        "it may ask in more than ten rounds, after which common clients give up (the official "
        "Python, TypeScript, C# and Go clients end a call after ten)",
        "ask several things in one form or with ctx.gather, or make it a task",
    ),
    "pauses-above-clients": Complaint(
        "it may take more than ten rounds that ask nothing; common clients count them like "
        "questions, and end a call after ten",
        "wait inside the round with ctx.pause(hold=...) or elicit_url(until=...), which hold it "
        "for 22 seconds; do more between two pauses; or make it a task",
    ),
    # people
    "principal-inert": Complaint(
        "it tells callers apart, and over HTTP nobody says who calls: all callers are one",
        "authenticate callers (Server(principal=...)), name them (restart_key=, scope_key=), or "
        "serve on stdio (--stdio)",
    ),
    "approvers-of-another-issuer": Complaint(
        "callers and approvers are vouched for by different issuers: one person has two names, "
        "and may approve a call of their own",
        "sign approvers in with the issuer of the callers, or set Console(same_person=...)",
    ),
    "role-nobody-holds": Complaint(
        "it waits for a role that Console(roles=...) does not have: nobody can decide",
        "add the role to Console(roles=...), or correct by=",
    ),
    "console-elsewhere": Complaint(
        "Console(url=...) names another port of this machine than the one the server listens on: "
        "every link to its pages leads elsewhere",
        "name the port in Console(url=...), or listen on that one (--port)",
    ),
    "by-without-console": Complaint(
        "it waits for somebody else's decision, and the server has no pages where they decide",
        "give it Server(console=Console(...))",
    ),
    # asking
    "asks-not-declared": Complaint(
        "it acts before its first question: a client that cannot be asked is refused after the "
        "effect has happened",
        "declare asks=(Elicit, ...) or unable=..., so that such a client is refused before the "
        "first line",
    ),
    "asks-incomplete": Complaint(
        "it asks something that its asks= does not name: a client that cannot be asked that is "
        "refused in the middle of the call",
        "name every kind of question in asks=",
    ),
    "form-refused": Complaint(
        "the form cannot be asked: the call fails at this question",
        "see the reason",
    ),
    "form-not-shown": Complaint(
        "the form has a field that takes several choices, which hosts of revision 2025-06-18 and "
        "before cannot show",
        'ask with one field for each choice, or serve modern clients only: eras=("modern",)',
    ),
    "form-too-long": Complaint(
        "the form has more than twelve fields: hosts show it in a small window, and people fill "
        "in what they must to get rid of it",
        "ask in several steps",
    ),
    # what hosts do with tools
    "tool-name-refused": Complaint(
        "models are given tools by names of 1 to 64 of A-Z a-z 0-9 _ -; hosts drop or rename "
        "others",
        "give it another name=",
    ),
    "tool-names-alike": Complaint(
        "two tools have the same name for hosts that compare without case, dots, dashes and "
        "underscores",
        "give one of them another name=",
    ),
    "tool-without-description": Complaint(
        "without a description a model cannot know when to use it, and some hosts refuse it",
        "write a docstring, or give description=",
    ),
    "argument-name-refused": Complaint(
        "hosts refuse a tool with an argument whose name is not 1 to 64 of A-Z a-z 0-9 _ . -",
        "rename it",
    ),
    "schema-refused": Complaint(
        "hosts refuse an input schema with anyOf, oneOf or allOf at its top",
        "give input_schema= as one object with properties",
    ),
    "too-many-tools": Complaint(
        "there are more than 128 tools, which is the most that hosts pass on to a model",
        "split the server, or hide tools by visible=",
    ),
}
"""By id; those of `antiphon lint` are found, too. An id is never given another meaning."""

IDS = frozenset(COMPLAINTS) | {rule.id for rule in RULES}


def diagnosis(id: str, where: str, reason: str = "") -> Diagnosis:
    """Return a complaint that holds; the reason may say more than the usual one."""
    complaint = COMPLAINTS[id]
    return Diagnosis(id, where, reason or complaint.reason, complaint.cure)


def of_lint(found: LintFinding) -> Diagnosis:
    """Return what `antiphon lint` has found."""
    where = f"{found.path}:{found.line} in {found.handler}"
    return Diagnosis(found.rule.id, where, found.rule.reason, found.rule.cure)
