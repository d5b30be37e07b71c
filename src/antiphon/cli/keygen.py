"""`antiphon keygen`: print a key for sealing tokens."""

from antiphon.seal.keyring import generate_key


def keygen() -> None:
    """Print a new key for ANTIPHON_KEYS: 32 random bytes in hex.

    Put the new key first and keep the old one behind it until the tokens it sealed have expired:
    ANTIPHON_KEYS=new,old
    """
    print(generate_key())
