"""Names of fields that ask for a secret."""

import re

from antiphon.protocol.text import snake_case

# Guessing by name errs on the side of refusing; the author of a form can mark a field.
# These ask for a secret anywhere in a name, unless the next word says that it is about one.
_always = re.compile(
    r"pass(words?|wd|phrase|code)|pwd|cv[vc]|ssn|credentials?"
    r"|(api|private|secret|access|signing|encryption|ssh)_?keys?"
    r"|(credit|debit)_?card|card_?(number|no|code)|security_code|social_security"
    r"|(seed|recovery)_(phrase|code)"
).fullmatch

# These ask for a secret only at the end of a name: `access_token` does, `token_count` does not.
_at_the_end = re.compile(r"secrets?|token|jwt|pin|t?otp").fullmatch

# After such a word, the field is only about a secret: `password_hint`, `api_key_name`.
_about = re.compile(
    r"age|brand|count|days|enabled|expir(y|es)|hint|id|issuer|kind|label|length|limit|manager"
    r"|name|network|policy|provider|reset|rotation|rules?|status|strength|type|ur[li]"
).fullmatch

# After such a word, it is still the secret: `token_value`, `pin_code`.
_value = re.compile(
    r"again|base|code|confirm(ation)?|data|digits|file|hex|here|no|number|pem|repeat|string"
    r"|text|value"
).fullmatch


def looks_secret(label: str) -> bool:
    """Whether a field's name or title asks for a password, key, token or payment data."""
    words = [word.rstrip("0123456789") or word for word in snake_case(label).split("_")]
    return any(_asks(words, start, width) for start in range(len(words)) for width in (1, 2))


def _asks(words: list[str], start: int, width: int) -> bool:
    phrase = "_".join(words[start : start + width])
    after = words[start + width : start + width + 1]
    if _always(phrase):
        return not (after and _about(after[0]))
    return _at_the_end(phrase) is not None and (not after or _value(after[0]) is not None)
