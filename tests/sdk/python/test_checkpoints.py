"""Checkpoints: create, list, get, restore, delete, and every refusal (wire/rest.md §3)."""

from datetime import datetime, timedelta, timezone

import pytest
from sprites import NotFoundError
from sprites.exceptions import APIError

COMMENT = 'zwölf → {"run": 1} ' + "x" * 1000


def create(sprite, comment=""):
    """Makes a checkpoint, holds its stream to the strictest client's rules and returns its id."""
    messages = list(sprite.create_checkpoint(comment))
    assert [message.type for message in messages] == ["info"] * (len(messages) - 1) + ["complete"]
    assert all(isinstance(message.data, str) and message.error is None for message in messages)
    (id,) = [message.data.removeprefix("  ID: ") for message in messages if message.data.startswith("  ID: ")]
    assert messages[-1].data == f"Checkpoint {id} created successfully"
    return id


def restore(sprite, id):
    messages = list(sprite.restore_checkpoint(id))
    assert messages[-1].type == "complete", messages
    assert messages[-1].data == f"Restore from {id} complete"
    assert all(message.error is None for message in messages)


def test_a_fresh_sprite_has_only_its_present(sprite):
    assert [checkpoint.id for checkpoint in sprite.list_checkpoints()] == ["Current"]


def test_create_list_get(sprite):
    assert create(sprite, COMMENT) == "v1"
    assert create(sprite) == "v2"
    present, second, first = sprite.list_checkpoints()
    assert (present.id, second.id, first.id) == ("Current", "v2", "v1")
    assert (present.comment, second.comment, first.comment) == (None, None, COMMENT)
    assert second.create_time > first.create_time
    assert abs(datetime.now(timezone.utc) - first.create_time) < timedelta(minutes=1)
    assert sprite.get_checkpoint("v1").comment == COMMENT
    assert sprite.get_checkpoint("2").id == "v2"
    assert sprite.get_checkpoint("Current").id == "Current"


def test_restore_brings_back_what_was(sprite):
    home = sprite.filesystem("/home/sprite")
    script = """
        mkdir -p tree/sub; echo kept > tree/sub/file; chmod 640 tree/sub/file; ln tree/sub/file tree/hard
        ln -s sub/file tree/soft; touch -d '2001-02-03 04:05:06.789' tree/sub/file; chmod 711 tree/sub
        truncate -s 1G tree/sparse; printf '\\0\\377' > 'tree/odd ü name'; mkdir tree/empty
    """
    sprite.run("sh", "-c", script, check=True)
    describe = ["sh", "-c", "cd tree && (find . -printf '%p %y %m %T@ %l\\n'; find . -type f -printf '%p %s %n %k\\n') | sort; cat sub/file odd*"]
    before = sprite.command(*describe).output()
    id = create(sprite)
    sprite.run("sh", "-c", "rm -rf tree; echo new > new", check=True)
    restore(sprite, id)
    assert sprite.command(*describe).output() == before
    assert (home / "tree" / "soft").read_text() == "kept\n"
    assert not (home / "new").exists()
    assert [checkpoint.id for checkpoint in sprite.list_checkpoints()] == ["Current", "v1"]


def test_numbers_are_never_used_twice(sprite, api):
    def delete(id):
        return api("DELETE", f"/v1/sprites/{sprite.name}/checkpoints/{id}")[0]

    create(sprite), create(sprite)
    assert delete("v2") == 409, "the one the sprite stands on cannot go"
    restore(sprite, "v1")
    assert (delete("v1"), delete("v2"), delete("v2")) == (409, 204, 404)
    assert create(sprite) == "v3"
    _, _, body = api("GET", f"/v1/sprites/{sprite.name}/checkpoints/v3")
    assert body["source_id"] == "v1"


def test_restore_ends_sessions_and_keeps_settings(sprite, client):
    sprite.update(labels=["keep"])
    id = create(sprite)
    with pytest.raises(TimeoutError):  # the SDK drops its socket, the command stays for its grace
        sprite.run("sleep", "600", timeout=1)
    assert [session.command for session in sprite.list_sessions()] == ["sleep 600"]
    restore(sprite, id)
    assert sprite.list_sessions() == []
    seen = client.get_sprite(sprite.name)
    assert (seen.id, seen.labels, seen.url) == (sprite.id, ["keep"], sprite.url)


def test_what_a_restore_replaced_can_be_had_again(sprite, api):
    home = sprite.filesystem("/home/sprite")
    create(sprite)
    (home / "late").write_text("written after the checkpoint")
    restore(sprite, "v1")
    assert not (home / "late").exists()
    _, _, everything = api("GET", f"/v1/sprites/{sprite.name}/checkpoints?includeAuto=true")
    (undo,) = [entry for entry in everything if entry["id"].startswith("auto-")]
    assert undo["is_auto"] is True
    restore(sprite, undo["id"])
    assert (home / "late").read_text() == "written after the checkpoint"


def test_unknown_checkpoints_are_not_found(sprite, api):
    for id in ("v1", "v999", "nonsense", "auto-1", "../v1"):
        with pytest.raises(NotFoundError):
            sprite.get_checkpoint(id)
        with pytest.raises(APIError) as raised:
            sprite.restore_checkpoint(id)
        assert raised.value.status_code == 404
    assert api("DELETE", f"/v1/sprites/{sprite.name}/checkpoints/v1")[0] == 404
    assert api("DELETE", f"/v1/sprites/{sprite.name}/checkpoints/Current")[0] == 409


def test_a_checkpoint_belongs_to_one_sprite(sprite, client, fresh_name):
    create(sprite)
    other = client.create_sprite(fresh_name("other"))
    with pytest.raises(APIError) as raised:
        other.restore_checkpoint("v1")
    assert raised.value.status_code == 404
    other.destroy()


def test_restoring_the_present_keeps_it(sprite):
    home = sprite.filesystem("/home/sprite")
    (home / "file").write_text("x")
    messages = list(sprite.restore_checkpoint("Current"))
    assert messages[-1].type == "complete"
    assert (home / "file").read_text() == "x"


def test_ancestry(sprite):
    create(sprite), create(sprite)
    restore(sprite, "v1")
    assert create(sprite) == "v3"
    assert [entry.id for entry in sprite.list_checkpoints("v3") if entry.id != "Current"] == ["v3", "v1"]


def test_an_empty_body_and_an_empty_object_both_create(sprite, api):
    for body, headers in [(None, {}), ("{}", {"Content-Type": "application/json"}), ("{}", {})]:
        status, answer, raw = api("POST", f"/v1/sprites/{sprite.name}/checkpoint", body, headers=headers)
        assert status == 200
        assert answer["Content-Type"] == "application/x-ndjson"
        assert raw.endswith(b"\n")
    assert [entry.id for entry in sprite.list_checkpoints()] == ["Current", "v3", "v2", "v1"]


def test_commands_run_while_a_checkpoint_is_made_and_are_in_none_twice(sprite):
    sprite.run("sh", "-c", "for i in $(seq 500); do echo $i > f$i; done", check=True)
    id = create(sprite)
    sprite.run("sh", "-c", "rm f*", check=True)
    restore(sprite, id)
    assert sprite.command("sh", "-c", "cat f* | sort -n | md5sum").output() == sprite.command(
        "sh", "-c", "seq 500 | md5sum"
    ).output()
