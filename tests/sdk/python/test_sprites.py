"""Create, get, list, update, delete, and what the SDK makes of refusals (wire/rest.md §1)."""

import re
import socket
import uuid
from datetime import datetime, timedelta, timezone
from urllib.parse import urlsplit

import pytest
import sprites
from sprites import ListOptions, SpriteConfig, URLSettings


def test_create_answers_with_the_whole_sprite(client, fresh_name):
    name = fresh_name()
    sprite = client.create_sprite(name)
    assert sprite.name == name
    assert str(uuid.UUID(sprite.id)) == sprite.id
    assert sprite.organization_name
    assert sprite.status == "running"
    assert re.fullmatch(rf"https?://{name}-[a-z0-9]+\..+", sprite.url)
    assert sprite.url_settings.auth == "sprite"
    assert sprite.labels == []
    for moment in (sprite.created_at, sprite.updated_at):
        assert moment.tzinfo == timezone.utc
        assert abs(datetime.now(timezone.utc) - moment) < timedelta(minutes=1)
    client.destroy_sprite(name)


def test_every_create_option_is_accepted_and_shown(client, fresh_name):
    name = fresh_name()
    client.create_sprite(
        name,
        config=SpriteConfig(ram_mb=512, cpus=1, region="ord", storage_gb=1),
        url_settings=URLSettings(auth="public", private_access="admins"),
        labels=["one", "zwei"],
        wait_for_capacity=True,
        runtime="default",
    )
    sprite = client.get_sprite(name)
    assert sprite.labels == ["one", "zwei"]
    assert sprite.url_settings == URLSettings(auth="public", private_access="admins")
    client.destroy_sprite(name)


def test_get_shows_what_create_answered(client, sprite):
    seen = client.get_sprite(sprite.name)
    for field in ("id", "name", "organization_name", "url", "url_settings", "labels", "created_at", "version"):
        assert getattr(seen, field) == getattr(sprite, field), field


def test_a_taken_name_is_a_conflict(client, sprite):
    with pytest.raises(sprites.SpriteError, match=r"status 409.*already exists"):
        client.create_sprite(sprite.name)


@pytest.mark.parametrize("name", ["", "Upper", "under_score", "-leads", "trails-", "dot.ted", "sl/ash", "x" * 55, "ü"])
def test_a_bad_name_is_refused(client, name):
    with pytest.raises(sprites.SpriteError, match=r"status 400"):
        client.create_sprite(name)


def test_the_longest_name_works(client):
    name = "x" * 54
    assert client.create_sprite(name).name == name
    client.destroy_sprite(name)


def test_unknown_names_are_not_found(client, fresh_name):
    name = fresh_name("ghost")
    with pytest.raises(sprites.NotFoundError):
        client.get_sprite(name)
    with pytest.raises(sprites.NotFoundError):
        client.destroy_sprite(name)
    with pytest.raises(sprites.NotFoundError):
        client.update_sprite(name, labels=["x"])
    with pytest.raises(sprites.NotFoundError):
        client.get_sprite("demo/name")


def test_a_deleted_sprite_is_gone_at_once_and_its_name_is_free(client, fresh_name):
    name = fresh_name()
    first = client.create_sprite(name)
    first.run("sh", "-c", "echo secret > $HOME/left")
    client.destroy_sprite(name)
    with pytest.raises(sprites.NotFoundError):
        client.get_sprite(name)
    second = client.create_sprite(name)
    assert second.id != first.id
    assert second.run("ls", "-A", capture_output=True).stdout.find(b"left") == -1
    second.delete()
    with pytest.raises(sprites.NotFoundError):
        client.get_sprite(name)


def test_update_replaces_labels_and_merges_url_settings(client, sprite):
    assert sprite.update(labels=["a", "b"]).labels == ["a", "b"]
    changed = sprite.update(url_settings=URLSettings(auth="public"))
    assert changed.labels == ["a", "b"]
    assert changed.url_settings.auth == "public"
    changed = sprite.update(url_settings=URLSettings(private_access="organization"))
    assert changed.url_settings == URLSettings(auth="public", private_access="organization")
    assert sprite.update(labels=[]).labels == []
    sprite.update_url_settings(URLSettings(auth="sprite"))
    assert client.get_sprite(sprite.name).url_settings.auth == "sprite"
    with pytest.raises(sprites.SpriteError, match="status 400"):
        sprite.update(url_settings=URLSettings(auth="everybody"))


def test_upgrade_changes_nothing(client, sprite):
    assert sprite.upgrade() is None
    assert client.get_sprite(sprite.name).id == sprite.id


@pytest.fixture(scope="module")
def seven(client, fresh_name):
    """Seven sprites under a prefix of their own, in order of name."""
    prefix = fresh_name("page") + "-"
    names = [f"{prefix}{letter}" for letter in "abcdefg"]
    for name in reversed(names):
        client.create_sprite(name)
    yield prefix, names
    for name in names:
        client.destroy_sprite(name)


def test_pages_follow_each_other_without_gap_or_repeat(client, seven):
    prefix, names = seven
    seen, sizes, token = [], [], None
    while True:
        page = client.list_sprites(ListOptions(prefix=prefix, max_results=3, continuation_token=token))
        seen += [info.name for info in page.sprites]
        sizes.append(len(page.sprites))
        assert page.running + page.warm + page.cold == len(page.sprites)
        token = page.next_continuation_token
        if not page.has_more:
            break
    assert seen == names
    assert sizes == [3, 3, 1]
    assert token is None
    assert [sprite.name for sprite in client.list_all_sprites(prefix)] == names
    assert client.list_all_sprites(prefix + "none") == []


def test_a_page_that_is_exactly_full_is_the_last_one(client, seven):
    prefix, names = seven
    page = client.list_sprites(ListOptions(prefix=prefix, max_results=7))
    assert ([info.name for info in page.sprites], page.has_more) == (names, False)


def test_list_entries_are_whole_sprites(client, seven):
    prefix, names = seven
    info = client.list_sprites(ListOptions(prefix=prefix, max_results=1, bulk_load=True)).sprites[0]
    sprite = client.get_sprite(names[0])
    assert (info.id, info.organization, info.url) == (sprite.id, sprite.organization_name, sprite.url)


def test_a_page_token_survives_the_deletion_of_the_sprite_it_names(client, fresh_name):
    prefix = fresh_name("del") + "-"
    for letter in "abcd":
        client.create_sprite(prefix + letter)
    page = client.list_sprites(ListOptions(prefix=prefix, max_results=2))
    client.destroy_sprite(prefix + "b")
    client.destroy_sprite(prefix + "c")
    rest = client.list_sprites(ListOptions(prefix=prefix, continuation_token=page.next_continuation_token))
    assert [info.name for info in rest.sprites] == [prefix + "d"]
    client.destroy_sprite(prefix + "a")
    client.destroy_sprite(prefix + "d")


def test_page_sizes_are_clamped_and_nonsense_is_refused(api):
    for size in ("1000000", "500", "0", "1"):
        assert api("GET", f"/v1/sprites?max_results={size}")[0] == 200, size
    status, _, body = api("GET", "/v1/sprites?max_results=many")
    assert status == 400
    assert isinstance(body["error"], str) and body["message"]
    assert isinstance(body["errors"], list)


def test_the_list_also_carries_counts_of_the_organization(api, seven):
    prefix, _ = seven
    _, _, page = api("GET", f"/v1/sprites?prefix={prefix}&max_results=1")
    assert page["running"] + page["warm"] + page["cold"] == 1
    org = page["org"]
    assert org["name"] == page["name"]
    assert org["running"] + org["warm"] + org["cold"] >= 7


def test_the_organization_of_the_token(api, seven):
    status, _, body = api("GET", "/v1/organization")
    assert status == 200
    _, _, page = api("GET", "/v1/sprites")
    assert page["name"] in body.values()


def test_a_wrong_token_is_an_authentication_error(base_url, fresh_name):
    with sprites.SpritesClient("not-the-token", base_url) as client:
        for call in (client.get_sprite, client.create_sprite, client.destroy_sprite):
            with pytest.raises(sprites.AuthenticationError):
                call(fresh_name())
        with pytest.raises(sprites.AuthenticationError):
            client.list_sprites()


@pytest.mark.parametrize("header", [{}, {"Authorization": "Basic YTpi"}, {"Authorization": "Bearer "}])
def test_a_missing_token_gets_json(api, header):
    status, headers, body = api("GET", "/v1/sprites", token=None, headers=header)
    assert status == 401
    assert headers["Content-Type"].startswith("application/json")
    assert isinstance(body["error"], str) and body["message"]


@pytest.mark.parametrize("request_line", ["PUT /v1/sprites/ghost", "POST /v1/sprites/ghost/exec?cmd=true"])
def test_a_refusal_leaves_the_connection_to_the_next_request(base_url, token, request_line):
    """This SDK sends head and body apart. A server that refuses at the head and then closes loses what comes next."""
    host = urlsplit(base_url)
    head = f"Host: {host.netloc}\r\nAuthorization: Bearer {token}\r\n"
    with socket.create_connection((host.hostname, host.port), timeout=20) as connection:
        connection.sendall(f"{request_line} HTTP/1.1\r\n{head}Content-Length: 2\r\n\r\n".encode())
        answers = b""
        connection.settimeout(0.3)
        try:  # an answer may come before the body
            answers += connection.recv(65536)
        except TimeoutError:
            pass
        connection.settimeout(20)
        connection.sendall(b"{}" + f"GET /v1/organization HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode())
        while piece := connection.recv(65536):
            answers += piece
    assert re.findall(rb"HTTP/1.1 (\d+) ", answers) == [b"404", b"200"]


def test_network_policy_is_refused_where_it_cannot_be_enforced(client, sprite):
    sprite.update_network_policy(sprites.NetworkPolicy(rules=[]))
    with pytest.raises(sprites.SpriteError, match="status 422.*network_policy_unsupported"):
        sprite.update_network_policy(
            sprites.NetworkPolicy(rules=[sprites.PolicyRule(domain="example.com", action="allow")])
        )
