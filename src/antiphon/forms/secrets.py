"""Whether a field of a form looks like it asks for a secret (ELICIT-04).

Owns the words. Guessing by name errs on the side of refusing; the author can say otherwise on the
field, which `antiphon.forms.form` reads. Knows no schema.
"""

import re

from antiphon.core.text import snake_case

# Asks for a secret wherever it stands, unless the word after it says that it is about one.
_always = re.compile(
    r"pass(words?|wd|phrase|code)|pwd|cv[vc]|ssn|credentials?"
    r"|(api|private|secret|access|signing|encryption|ssh)_?keys?"
    r"|(credit|debit)_?card|card_?(number|no|code)|security_code|social_security"
    r"|(seed|recovery)_(phrase|code)"
).fullmatch

# Asks for a secret at the end only: `access_token` does, `token_count` does not.
_at_the_end = re.compile(r"secrets?|token|jwt|pin|t?otp").fullmatch

# Said after the word, the field is one about a secret: `password_hint`, `api_key_name`.
_about = re.compile(
    r"age|brand|count|days|enabled|expir(y|es)|hint|id|issuer|kind|label|length|limit|manager"
    r"|name|network|policy|provider|reset|rotation|rules?|status|strength|type|ur[li]"
).fullmatch

# Said after the word, it still is the secret: `token_value`, `pin_code`.
_value = re.compile(
    r"again|base|code|confirm(ation)?|data|digits|file|hex|here|no|number|pem|repeat|string"
    r"|text|value"
).fullmatch


def looks_secret(label: str) -> bool:
    """Tell whether a field's name or title asks for a password, key, token or payment data."""
    words = [word.rstrip("0123456789") or word for word in snake_case(label).split("_")]
    return any(_asks(words, start, width) for start in range(len(words)) for width in (1, 2))


def _asks(words: list[str], start: int, width: int) -> bool:
    phrase = "_".join(words[start : start + width])
    after = words[start + width : start + width + 1]
    if _always(phrase):
        return not (after and _about(after[0]))
    return _at_the_end(phrase) is not None and (not after or _value(after[0]) is not None)
