"""The SDK's path objects against the file routes (wire/rest.md §2)."""

from datetime import datetime, timedelta, timezone

import pytest
from sprites import (
    DirectoryNotEmptyError,
    FileNotFoundError_,
    FilesystemError,
    IsADirectoryError_,
    NotADirectoryError_,
    PermissionError_,
)


@pytest.fixture
def home(sprite):
    """The sprite's home as the SDK's filesystem."""
    return sprite.filesystem("/home/sprite")


@pytest.mark.parametrize(
    "content", [b"", b"x", bytes(range(256)) * 4097, b"\r\n\0\n"], ids=["empty", "one", "binary", "newlines"]
)
def test_bytes_come_back(home, content):
    path = home / "file.bin"
    path.write_bytes(content)
    assert path.read_bytes() == content
    assert path.stat().size == len(content)


def test_text_and_names_of_every_kind(home):
    for name in ["plain", "with space", "plus+and&equals=", "percent%20", "ümlaut→", ".hidden", "quote'\"", "~", "a\nb"]:
        (home / name).write_text(f"zwölf {name}")
        assert (home / name).read_text() == f"zwölf {name}"
        assert (home / name).stat().name == name


def test_stat_of_a_file(home):
    path = home / "sub" / "file.txt"
    path.write_text("hello", mode=0o640)
    stat = path.stat()
    assert (stat.name, stat.path, stat.size, stat.mode, stat.is_dir) == (
        "file.txt", "/home/sprite/sub/file.txt", 5, "0640", False,
    )
    assert abs(datetime.now(timezone.utc) - stat.mod_time) < timedelta(minutes=1)
    assert path.exists() and path.is_file() and not path.is_dir()


def test_listing_is_by_name_with_dot_files(home):
    folder = home / "folder"
    for name in ["b", "a", ".dot", "Z"]:
        (folder / name).write_text(name)
    (folder / "sub" / "deep").write_text("x")
    assert folder.listdir() == [".dot", "Z", "a", "b", "sub"]
    assert [str(path) for path in folder.iterdir()][:2] == ["/home/sprite/folder/.dot", "/home/sprite/folder/Z"]


def test_missing_is_file_not_found(home):
    missing = home / "missing"
    assert not missing.exists() and not missing.is_file() and not missing.is_dir()
    for call in (missing.stat, missing.read_bytes, missing.listdir, missing.unlink, missing.rmdir, missing.rmtree):
        with pytest.raises(FileNotFoundError_):
            call()
    with pytest.raises(FileNotFoundError_):
        missing.rename("other")
    with pytest.raises(FileNotFoundError_):
        missing.copy_to("other")
    with pytest.raises(FileNotFoundError_):
        missing.chmod(0o600)
    missing.unlink(missing_ok=True)


def test_mkdir_by_default_makes_one_empty_folder(home, sprite):
    (home / "new").mkdir()
    assert (home / "new").listdir() == []
    assert sprite.command("stat", "-c", "%a %F", "new").output() == b"755 directory\n"
    with pytest.raises(FileNotFoundError_):
        (home / "no" / "parent").mkdir()
    (home / "no" / "parent").mkdir(parents=True)
    assert (home / "no").listdir() == ["parent"]


def test_mkdir_with_exist_ok(home):
    # The SDK takes a folder for whatever its first entry is (wire/rest.md §2.6), so that entry is a folder here.
    (home / "kept" / "a" / "file").write_text("x")
    (home / "kept").mkdir(parents=True, exist_ok=True)
    assert (home / "kept").listdir() == ["a"]
    (home / "empty").mkdir()
    (home / "empty").mkdir(parents=True, exist_ok=True)
    assert (home / "empty").listdir() == []


def test_writing_makes_parents_unless_told_not_to(home):
    (home / "a" / "b" / "c.txt").write_text("deep")
    assert (home / "a" / "b" / "c.txt").read_text() == "deep"
    with pytest.raises(FileNotFoundError_):
        (home / "x" / "c.txt").write_text("deep", mkdir_parents=False)


def test_an_overwrite_replaces_everything(home):
    path = home / "file"
    path.write_text("a long first version")
    path.write_text("short", mode=0o600)
    assert (path.read_text(), path.stat().mode) == ("short", "0600")


def test_rename_moves_and_replaces(home):
    (home / "old").write_text("new content")
    (home / "target").write_text("old content")
    moved = (home / "old").rename("target")
    assert str(moved) == "/home/sprite/target"
    assert moved.read_text() == "new content"
    assert not (home / "old").exists()
    (home / "folder" / "f").write_text("x")
    (home / "folder").replace(home / "renamed")
    assert (home / "renamed").listdir() == ["f"]


def test_copy_of_a_file_and_of_a_tree(home):
    (home / "tree" / "sub" / "f").write_text("deep", mode=0o755)
    (home / "tree" / "g").write_text("flat")
    (home / "tree").copy_to("copied")
    assert (home / "copied").listdir() == ["g", "sub"]
    assert (home / "copied" / "sub" / "f").read_text() == "deep"
    (home / "tree" / "g").copy_to(home / "h")
    assert ((home / "h").read_text(), (home / "tree" / "g").read_text()) == ("flat", "flat")
    with pytest.raises(IsADirectoryError_):
        (home / "tree").copy_to("again", recursive=False)


def test_chmod(home, sprite):
    (home / "tree" / "f").write_text("#!/bin/sh\necho ran\n")
    (home / "tree" / "f").chmod(0o755)
    assert (home / "tree" / "f").stat().mode == "0755"
    assert sprite.command("tree/f").output() == b"ran\n"
    (home / "tree").chmod(0o700, recursive=True)
    assert sprite.command("stat", "-c", "%a", "tree", "tree/f").output() == b"700\n700\n"


def test_delete(home):
    (home / "tree" / "f").write_text("x")
    with pytest.raises(DirectoryNotEmptyError):
        (home / "tree").rmdir()
    assert (home / "tree" / "f").exists()
    (home / "tree" / "f").unlink()
    (home / "tree").rmdir()
    (home / "tree" / "sub" / "f").write_text("x")
    (home / "tree").rmtree()
    assert "tree" not in (home / ".").listdir()


def test_touch(home):
    path = home / "touched"
    path.touch()
    assert (path.read_bytes(), path.stat().mode) == (b"", "0644")
    path.write_text("kept")
    path.touch()
    assert path.read_text() == "kept"
    with pytest.raises(FilesystemError) as raised:
        path.touch(exist_ok=False)
    assert raised.value.code == "EEXIST"


def test_kinds_are_told_apart(home):
    (home / "folder" / "f").write_text("x")
    with pytest.raises(IsADirectoryError_):
        (home / "folder").read_bytes()
    with pytest.raises(IsADirectoryError_):
        (home / "folder").write_text("x")
    with pytest.raises(NotADirectoryError_):
        (home / "folder" / "f" / "below").write_text("x")


def test_outside_of_the_sprite_nothing_can_be_changed(home):
    with pytest.raises(PermissionError_):
        (home / "/etc/fountain-sdk-test").write_text("x")
    with pytest.raises(PermissionError_):
        (home / "/etc/hostname").unlink()
    with pytest.raises(PermissionError_):
        (home / "/usr/fountain-sdk-test").mkdir(parents=True)


def test_dots_lead_nowhere_else(home):
    (home / "sub" / ".." / "file").write_text("x")
    assert "file" in (home / ".").listdir()
    with pytest.raises(PermissionError_):
        (home / "../../../../../../etc/fountain-sdk-test").write_text("x")


def test_a_tilde_is_an_ordinary_character(home, sprite):
    (home / "~" / "x").write_text("tilde")
    assert sprite.command("cat", "./~/x").output() == b"tilde"


def test_files_and_commands_share_one_disk(home, sprite):
    (home / "from-api").write_text("api")
    assert sprite.command("cat", "from-api").output() == b"api"
    sprite.run("sh", "-c", "printf cmd > from-command; ln -s from-command link; chmod 604 from-command", check=True)
    assert (home / "from-command").read_text() == "cmd"
    assert (home / "from-command").stat().mode == "0604"
    assert (home / "link").read_text() == "cmd"
    (home / "link").write_text("through")
    assert sprite.command("sh", "-c", "cat from-command; test -L link && echo .").output() == b"through.\n"
    (home / "link").unlink()
    assert (home / "from-command").read_text() == "through"


def test_a_recreated_sprite_starts_empty(home, sprite, client):
    (home / "secret").write_text("x")
    sprite.destroy()
    client.create_sprite(sprite.name)
    assert not (home / "secret").exists()
