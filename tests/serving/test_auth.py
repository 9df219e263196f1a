"""API keys: the file of them, their limits by a clock that stands still, and what a request without a key gets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewardlab.errors import ConfigError
from rewardlab.serving import auth
from rewardlab.serving.auth import LIMITS, Account, Bucket, Key, Keys, key_digest, read_keys
from rewardlab.serving.middleware import ApiKeyMiddleware
from rewardlab.serving.request_record import REQUEST, RequestRecord, current_request

HASH = hashlib.sha256(b"beta").hexdigest()
ALPHA, WRONG = "Bearer alpha", "Bearer wrong"


class Clock:
    """A clock that goes on where a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(auth, "time", clock)
    return clock


def keys_of(folder: Path, text: str, per_minute: float = math.inf) -> list[Key]:
    path = folder / "keys"
    path.write_text(text, encoding="utf-8")
    return read_keys(path, per_minute=per_minute)


def test_keys_are_read(tmp_path: Path) -> None:
    """In the clear or hashed, each with its name and limits; a rate in the file is before the server's."""
    lines = (
        f"# team one\nalpha per_minute=5 max_bytes=1000 weight=0.5\n\nsha256:{HASH} name=b.e-t_a tokens_per_minute=2 # two\n"
    )
    alpha, beta = keys_of(tmp_path, lines, per_minute=60)
    assert alpha == Key.of("alpha", per_minute=5.0, max_bytes=1000.0, weight=0.5)
    assert beta == Key.of("beta", per_minute=60, tokens_per_minute=2.0, name="b.e-t_a")
    assert keys_of(tmp_path, f"sha256:{HASH.upper()} samples_per_minute=4") == [Key.of("beta", samples_per_minute=4.0)]
    assert keys_of(tmp_path, "schlüssel name=s") == [Key.of("schlüssel", name="s")]
    assert keys_of(tmp_path, "\ufeffalpha#1 # a comment\n#beta\n") == [Key.of("alpha#1")]
    assert LIMITS == ("per_minute", "samples_per_minute", "tokens_per_minute", "max_bytes", "weight")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("sha256:beef", "a hash is not 64 hex digits"),
        ("SHA256:beta", "a hash is not 64 hex digits"),
        (f"sha256:{hashlib.sha256().hexdigest()}", "a hash is of an empty key"),
        ("name=anna weight=2", "a line begins with 'name=anna', not with a key"),
        ("per_minute=5", "a line begins with 'per_minute=5', not with a key"),
        ("alpha weight=inf", "a weight is infinite"),
        ("alpha per_minute=0", "a limit is not above 0"),
        ("alpha weight=nan", "a limit is not above 0"),
        ("alpha size=3 age=4", "unknown limit 'age'"),
        ("alpha weight=1=2", "could not convert string to float: '1=2'"),
        ("alpha weight", "could not convert string to float: ''"),
        ("alpha weight=1 weight=2", "'weight' appears twice"),
        ("alpha name=", "'' is not a valid name: letters, digits, '.', '_' and '-', at most 64"),
        (f"alpha name={'n' * 65}", f"'{'n' * 65}' is not a valid name: letters, digits, '.', '_' and '-', at most 64"),
    ],
)
def test_a_bad_line_is_refused(tmp_path: Path, line: str, sentence: str) -> None:
    """Before anybody is let in, with what was expected."""
    with pytest.raises(ConfigError) as caught:
        keys_of(tmp_path, f"good\n{line}\n")
    expected = "name=WORD, per_minute=N, samples_per_minute=N, tokens_per_minute=N, max_bytes=N, weight=N"
    path = tmp_path / "keys"
    assert str(caught.value) == f"--keys {path}: {sentence}; expected KEY or sha256:HEX, then any of {expected}"


def test_a_file_without_keys_is_refused(tmp_path: Path) -> None:
    for text in ("", "# nothing\n"):
        with pytest.raises(ConfigError, match="contains no key; to serve without keys, leave out --keys"):
            keys_of(tmp_path, text)
    with pytest.raises(ConfigError, match=r"--keys .*none: cannot be read \("):
        read_keys(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "latin")


def test_a_key_in_words() -> None:
    key = Key.of("alpha", per_minute=1200, samples_per_minute=30.0, tokens_per_minute=math.inf)
    assert key.limits_in_words() == "1,200 requests a minute, 30 samples a minute"
    assert Key.of("alpha", tokens_per_minute=5).limits_in_words() == "5 tokens a minute"
    assert (key.tenant, Key.of("alpha", name="anna").tenant) == (hashlib.sha256(b"alpha").hexdigest()[:16], "anna")


def test_a_bucket_fills(clock: Clock) -> None:
    """At once a tenth of a minute, then as it fills; never more than a tenth; a debt is waited for."""
    bucket = Bucket(120.0)  # two a second, twelve at once
    for _ in range(12):
        assert bucket.wait_s() == 0
        bucket.take(1)
    assert bucket.wait_s() == 0.5
    clock.now += 0.25
    assert bucket.wait_s() == 0.25
    clock.now += 3600
    bucket.take(13)
    assert bucket.wait_s() == 1
    slow = Bucket(6.0)  # a tenth is less than one: one at once
    assert slow.wait_s() == 0
    slow.take(1)
    assert slow.wait_s() == 10
    endless = Bucket(math.inf)
    endless.take(1e9)
    assert endless.wait_s() == 0


def test_an_account_takes_one_request_at_a_time(clock: Clock) -> None:
    account = Account(Key.of("alpha", per_minute=20.0, samples_per_minute=60.0, tokens_per_minute=600.0))
    assert [account.wait_s() for _ in range(3)] == [0, 0, 3]
    clock.now += 60
    account.samples.take(8)  # of six
    assert account.wait_s() == 3
    account.tokens.take(160)  # of sixty
    assert account.wait_s() == pytest.approx(10.1)
    clock.now += 10.2
    assert [account.wait_s() == 0 for _ in range(3)] == [True, True, False]


def test_keys_are_replaced_with_what_they_used(clock: Clock) -> None:
    """One that stays keeps its debt; one whose limits change begins anew; one that is gone is refused."""
    old, stays = Key.of("old"), Key.of("stays", per_minute=10.0, weight=3.0)
    keys = Keys([old, stays])
    assert (keys.wait_s(stays), keys.wait_s(stays)) == (0, 6)
    keys.replace([stays])
    assert keys.wait_s(stays) == 6
    assert (keys.find("Bearer old"), keys.find("bearer stays"), len(keys)) == (None, stays, 1)
    assert (keys.weight(stays.tenant), keys.weight("nobody"), keys.wait_s(old)) == (3.0, 1.0, 0)
    keys.replace([changed := Key.of("stays", per_minute=20.0)])
    assert (keys.wait_s(changed), keys.weight(changed.tenant)) == (0, 1.0)
    keys.charge("nobody", samples=5, tokens=5)
    keys.replace([paid := Key.of("paid", samples_per_minute=60.0, tokens_per_minute=600.0)])
    keys.charge(paid.tenant, samples=7)
    assert keys.wait_s(paid) == 2
    keys.charge(paid.tenant, tokens=1)
    assert keys.wait_s(paid) == 2
    keys.charge(paid.tenant, tokens=98)
    assert keys.wait_s(paid) == 4


def test_without_keys_everybody_is_one_tenant() -> None:
    key = Keys().find("")
    assert key is not None
    assert (key.tenant, Keys().wait_s(key)) == ("", 0)


def test_the_key_of_a_header() -> None:
    """Of Bearer, and the password of Basic; of nothing where there is none."""

    def basic(text: bytes) -> str:
        return f"Basic {base64.b64encode(text).decode()}"

    alpha, none = hashlib.sha256(b"alpha").digest(), hashlib.sha256(b"").digest()
    for header in (ALPHA, "bearer alpha", basic(b"x:alpha"), basic(b":alpha").replace("Basic", "BASIC")):
        assert key_digest(header) == alpha
    assert key_digest(basic(b"x:al:pha")) == hashlib.sha256(b"al:pha").digest()
    spelt = "schlüssel".encode().decode("latin-1")  # as a server reads the bytes of UTF-8
    assert key_digest(f"Bearer {spelt}") == key_digest(basic("x:schlüssel".encode())) == Key.of("schlüssel").digest
    assert key_digest("Bearer al pha") == hashlib.sha256(b"al pha").digest()
    for header in ("", "alpha", "Digest alpha", "Basic ä", basic(b"alpha")):
        assert key_digest(header) == none


class Asked:
    """What the application behind the keys was asked."""

    def __init__(self, *keys: Key) -> None:
        self.seen: list[tuple[str, str, Any, Any]] = []
        self.updates = 0
        self.app = ApiKeyMiddleware(self._answer, Keys(keys), self._update)

    def _update(self) -> None:
        self.updates += 1

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        assert await receive() == {"type": "http.request", "body": b"{}"}
        record = current_request()
        self.seen.append((record.tenant, record.authorization, scope.get("has_key"), scope.get("max_bytes")))
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def ask(self, path: str, header: str | None = None, **scope: Any) -> tuple[int, dict[str, str], str]:
        """Return HTTP status, headers, and the sentence after the status in words."""
        headers = [(b"accept", b"*/*"), *([(b"authorization", header.encode("latin-1"))] if header is not None else [])]
        scope = {"type": "http", "path": path, "client": ("1.2.3.4", 5), "headers": headers} | scope
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"{}"}

        async def send(message: Any) -> None:
            sent.append(message)

        async def answer() -> None:
            REQUEST.set(RequestRecord())  # as the request log does
            await self.app(scope, receive, send)

        asyncio.run(answer())
        headers_sent = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], headers_sent, "{status}: {error}".format(**json.loads(body)) if body else ""


def test_a_request_is_its_keys() -> None:
    """The application sees the tenant and the header of an accepted key."""
    server = Asked(Key.of("alpha", name="anna", max_bytes=99.0), Key.of("gr\xfc\xdfe"))
    assert server.ask("/v1/judge", ALPHA)[0] == 200
    assert server.seen == [("anna", ALPHA, None, 99.0)]
    assert server.updates == 1
    assert server.ask("/health")[0] == server.ask("/p/health", ALPHA, root_path="/p")[0] == 200
    assert [seen[2] for seen in server.seen[1:]] == [False, True]
    status, headers, sentence = server.ask("/v1/judge")
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert sentence == "key: no valid API key; send Authorization: Bearer KEY"
    assert server.ask("/v1/judge", "Bearer gr\xfc\xdfe")[0] == 200


def test_a_limit_is_429(clock: Clock) -> None:
    """With the seconds to wait in whole, at least one. A wrong key is 401, however often, and keeps no good one out."""
    server = Asked(Key.of("alpha", per_minute=90.0))
    assert [server.ask("/v1/judge", ALPHA)[0] for _ in range(9)] == [200] * 9
    status, headers, sentence = server.ask("/v1/judge", ALPHA)
    assert (status, headers["retry-after"]) == (429, "1")
    assert sentence == "rate: this key has used what it may use now (90 requests a minute; a tenth of that at once)"
    assert [server.ask("/v1/judge", WRONG, client=None)[0] for _ in range(99)] == [401] * 99
    assert server.ask("/health", WRONG)[0] == 200  # public paths are answered to everybody
    clock.now += 60
    assert server.ask("/v1/judge", ALPHA)[0] == 200
