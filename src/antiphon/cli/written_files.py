"""The files that commands write, also in folders that others have prepared.

Every command writes through this module. A project that somebody else made may hold links, or
files under the names that a command uses. So a link is never followed, neither a file nor a folder
below the working directory; an existing file is replaced only if the caller recognises its content
as its own; and what is written can be read by its owner only.
"""

import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from antiphon.errors import AntiphonError

PRIVATE = 0o600
_MOST_BYTES = 16 * 1024 * 1024
_FIRST_BYTES = 64 * 1024
_BACKUPS = 1_000
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_LINK
_BY_DESCRIPTOR = os.open in os.supports_dir_fd and os.rename in os.supports_dir_fd


class NotWritten(AntiphonError):
    """A file was left alone: it is a link, or something that the command has not made."""


def write_new(path: Path, text: str, *, mode: int = PRIVATE) -> None:
    """Write a file that does not exist yet.

    Raises:
        NotWritten: There is something already, a link included, or a folder on the way is a link.
        OSError: The system does not let it be written.
    """
    with _opened(path) as folder:
        _create(folder, path, text.encode(), mode)


def write_private(name: str, text: str) -> Path:
    """Write a file in a new folder that only its owner can read; return its path."""
    path = Path(tempfile.mkdtemp(prefix="antiphon-")) / name
    write_new(path, text)
    return path


def write_own(path: Path, text: str, is_own: Callable[[bytes], bool], *, mode: int = 0) -> None:
    """Write a file in one step; what is there is replaced only if it is the command's own.

    Args:
        path: The file.
        text: Its new content.
        is_own: Whether the command recognises the present content as its own.
        mode: Of the file; readable by its owner only unless set.

    Raises:
        NotWritten: There is a link, a folder or a file of somebody else.
        OSError: The system does not let it be written.
    """
    with _opened(path) as folder:
        before = _read(folder, path)
        if before is not None and not is_own(before):
            raise NotWritten(
                f"{path} was left alone: it exists and was not written by antiphon. Choose another "
                "name, or remove it"
            )
        draft = f".{path.name[:100]}.{secrets.token_hex(8)}"
        _create(folder, path.with_name(draft), text.encode(), mode or PRIVATE)
        try:
            os.replace(folder.place(draft), folder.place(path.name), **folder.both)
        except BaseException:
            with suppress(OSError):
                os.unlink(folder.place(draft), **folder.one)
            raise


def keep_copy(path: Path, content: bytes) -> Path:
    """Write the content of a file beside it, under a name of its own; return the copy's path."""
    for number in range(1, _BACKUPS):
        ending = ".before-antiphon" + (f"-{number}" if number > 1 else "")
        copy = path.with_name(path.name + ending)
        with suppress(NotWritten), _opened(copy) as folder:
            _create(folder, copy, content, PRIVATE)
            return copy
    raise NotWritten(f"{path} was left alone: there are {_BACKUPS} copies of it beside it")


def read_plain(path: Path) -> tuple[bytes, int] | None:
    """Return the content and mode of a file that is no link; None when there is none.

    Raises:
        NotWritten: It is a link, a folder or something else that is no plain file.
        OSError: It cannot be read.
    """
    try:
        with _opened(path, make=False) as folder:
            content = _read(folder, path)
            if content is None:
                return None
            status = os.stat(folder.place(path.name), follow_symlinks=False, **folder.one)
            return content, stat.S_IMODE(status.st_mode)
    except FileNotFoundError:
        return None


def open_to_append(path: Path, is_own: Callable[[bytes], bool]) -> int:
    """Open a file to append to it, new or the command's own; return its descriptor.

    `is_own` is given the first bytes only: such files grow.

    Raises:
        NotWritten: There is a link, a folder or a file of somebody else.
        OSError: It cannot be opened.
    """
    with _opened(path) as folder:
        before = _read(folder, path, first=_FIRST_BYTES)
        if before is not None and not is_own(before):
            raise NotWritten(f"{path} was left alone: it exists and holds something else")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK
        if before is None:
            flags |= os.O_EXCL
        return os.open(folder.place(path.name), flags, PRIVATE, **folder.one)


def make_folder(path: Path) -> None:
    """Make a folder that only its owner can read, unless it is there; a link is refused.

    Raises:
        NotWritten: It is a link, or below one.
        OSError: It cannot be made.
    """
    with _opened(path / "file"):
        pass


def make_new_folder(path: Path) -> None:
    """Make a folder where nothing is, readable as the user's folders are.

    Raises:
        FileExistsError: There is something already, a link included.
        NotWritten: A folder on the way is a link.
        OSError: It cannot be made.
    """
    with _opened(path) as folder:
        os.mkdir(folder.place(path.name), **folder.one)


# --- folders -----------------------------------------------------------------------------------


class _Folder:
    """An open folder: names in it mean what they meant when it was opened."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self._path = path
        self.descriptor = descriptor
        self.one: dict[str, int] = {} if descriptor is None else {"dir_fd": descriptor}
        self.both: dict[str, int] = (
            {} if descriptor is None else {"src_dir_fd": descriptor, "dst_dir_fd": descriptor}
        )

    def place(self, name: str) -> str:
        return name if self.descriptor is not None else str(self._path / name)


@contextmanager
def _opened(path: Path, *, make: bool = True) -> Generator[_Folder]:
    """Open the folder of a file without following links; make what is missing of it.

    Folders above the working directory, and those of an absolute path, are the user's own.
    """
    parent = path.parent
    if path.name in ("", ".."):
        raise NotWritten(f"{path} names no file")
    if parent.is_absolute():
        if make:
            parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        start, rest = parent, ()
    else:
        start, rest = Path.cwd(), parent.parts
    descriptor = os.open(start, _FOLDER & ~_NO_LINK) if _BY_DESCRIPTOR else None
    try:
        for name in rest:
            start, descriptor = _step(start, descriptor, name, make=make)
        yield _Folder(start, descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _step(start: Path, descriptor: int | None, name: str, *, make: bool) -> tuple[Path, int | None]:
    """Go down one folder; its descriptor takes the place of the one above."""
    here = start / name
    folder = _Folder(start, descriptor)
    if make:
        with suppress(FileExistsError):
            os.mkdir(folder.place(name), 0o700, **folder.one)
    status = os.stat(folder.place(name), follow_symlinks=False, **folder.one)
    if not stat.S_ISDIR(status.st_mode) or getattr(os.path, "isjunction", _no)(here):
        raise NotWritten(
            f"{here} is a link or no folder: nothing was written there. Name the folder itself"
        )
    if descriptor is None:
        return here, None
    below = os.open(name, _FOLDER, dir_fd=descriptor)
    os.close(descriptor)
    return here, below


def _no(path: Path) -> bool:
    return False


# --- files -------------------------------------------------------------------------------------


def _create(folder: _Folder, path: Path, content: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(folder.place(path.name), flags, mode, **folder.one)
    except FileExistsError:
        raise NotWritten(f"{path} exists already. Choose another name, or remove it") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)  # whatever the umask takes away
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            os.unlink(folder.place(path.name), **folder.one)
        raise


def _read(folder: _Folder, path: Path, *, first: int = 0) -> bytes | None:
    """Return the content of a plain file, or the first bytes; None when there is no such name."""
    name = folder.place(path.name)
    try:
        status = os.stat(name, follow_symlinks=False, **folder.one)
        if not stat.S_ISREG(status.st_mode):
            raise NotWritten(f"{path} was left alone: it is a link or no plain file")
        flags = os.O_RDONLY | _NO_LINK | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(name, flags, **folder.one), "rb") as file:
            content = file.read(first or _MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > _MOST_BYTES:
        raise NotWritten(f"{path} was left alone: it is too large to be a file of antiphon")
    return content
