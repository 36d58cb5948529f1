"""The page of ``report`` and ``view`` in a real browser, as a person uses it."""

from __future__ import annotations

import pathlib
import shutil
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from browser.chromium import Browser, started
from gymnasium import spaces
from report import episodes as made
from selenium.webdriver.common.keys import Keys

import diskreplay as dr
from diskreplay.report.serve import Server
from diskreplay.report.write import report

DATASETS = pathlib.Path(__file__).parents[2] / "datasets"
PIXEL = """
const pen = new OffscreenCanvas(1, 1).getContext('2d');
pen.drawImage(document.querySelector('#screens canvas'), 3, 3, 1, 1, 0, 0, 1, 1);
return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
"""
"""Red, green and blue of a pixel of the first camera."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as one:
        yield one


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report of a small store, every episode of it to be played."""
    folder = tmp_path_factory.mktemp("page")
    made.make(folder / "a.replay")
    report(folder / "a.replay", folder / "a.html", episodes=range(5))
    return (folder / "a.html").as_uri()


@pytest.fixture(autouse=True)
def quiet(browser: Browser) -> Iterator[None]:
    """No page says anything in the console: no errors, nothing that its policy refused."""
    yield
    assert browser.log() == []


def shown(browser: Browser, column: int = 0) -> list[str]:
    """A column of the table of episodes."""
    cells = browser.texts(f"#table tr.episode td:nth-child({column + 1})")
    return [cell.removeprefix("▸ ").removesuffix(" ◆") for cell in cells]


def at(browser: Browser, episode: int, t: int) -> None:
    """Waits until a moment is shown, its frame included."""
    browser.wait("return location.hash === arguments[0]", f"#episode={episode}&t={t}")
    browser.wait("return document.querySelector('#screens canvas')?.dataset.step === arguments[0]", str(t))


def opened(browser: Browser, page: str, episode: int, t: int) -> None:
    """Opens the page at a moment, and waits until it is shown."""
    browser.open(f"{page}#episode={episode}&t={t}")
    at(browser, episode, t)


def test_sorting(browser: Browser, page: str) -> None:
    browser.open(page)
    assert shown(browser) == ["0", "1", "2", "3", "4"]
    browser.click("th[data-key=total_reward] button")
    assert shown(browser, 1) == ["12", "4", "3", "1", "-2"]
    assert browser.run("return document.querySelector('th[data-key=total_reward]').ariaSort") == "descending"
    browser.click("th[data-key=total_reward] button")
    assert shown(browser, 1) == ["-2", "1", "3", "4", "12"]
    browser.click("th[data-key=end] button")
    assert shown(browser, 3) == ["cut", "running", "terminated", "terminated", "truncated"]
    assert browser.run("return document.querySelector('th[data-key=total_reward]').ariaSort") == "none"


def test_filtering(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.type("select[name=end]", "terminated")
    assert shown(browser) == ["0", "2"]
    assert browser.text("#shown") == "2 of 5 episodes"
    browser.type("input[name=returnleast]", "2")
    assert shown(browser) == ["0"]
    browser.type("input[name=lengthleast]", "5")
    assert browser.text("#table .none") == "No episode is like that."
    browser.click("#filters button[type=reset]")
    browser.wait("return document.querySelectorAll('#table tr.episode').length === 5")


def test_facts_of_an_episode_and_filtering_by_tag(browser: Browser, tmp_path: pathlib.Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)>"
    with made.create(tmp_path / "a.replay") as buffer:
        for number, tags in enumerate([["expert"], [], ["expert", hostile]]):
            buffer.begin_episode(seed=40 + number, tags=tags)
            made.play(buffer, number, 3)
    report(tmp_path / "a.replay", tmp_path / "a.html", episodes=range(3))
    browser.open(f"{(tmp_path / 'a.html').as_uri()}#episode=2&t=0")
    at(browser, 2, 0)
    assert browser.texts("#notes li")[:2] == ["seed: 42", f'tags: ["expert", "{hostile}"]']
    browser.type("select[name=tag]", "expert")
    assert shown(browser) == ["0", "2"]
    assert browser.run("return document.querySelectorAll('img').length") == 0


def test_evicted_bytes(browser: Browser, tmp_path: pathlib.Path) -> None:
    with made.create(tmp_path / "a.replay", capacity=10, shard_rows=4, chunk_rows=4) as buffer:
        for number in range(6):
            made.play(buffer, number, 3 + number % 2)
            buffer.commit()
    report(tmp_path / "a.replay", tmp_path / "a.html", episodes=range(1))
    browser.open((tmp_path / "a.html").as_uri())
    rows = "[...document.querySelector('#stored table').rows]"
    (head, *found) = browser.run(f"return {rows}.map((row) => [...row.cells].map((one) => one.innerText))")
    evicted = {row[0]: row[head.index("Evicted")] for row in found}
    assert evicted["obs/camera"] == "4.32 kB"


def test_every_frame_is_the_one_of_its_step(browser: Browser, page: str) -> None:
    browser.open(f"{page}#episode=1&t=0")
    browser.driver.find_element("id", "scroller").click()
    for t in range(6):
        at(browser, 1, t)
        assert browser.run(PIXEL) == [t, 1, 0]
        assert browser.run("return document.querySelector('.badge').hidden")
        browser.press(Keys.ARROW_RIGHT)
    at(browser, 1, 6)
    assert browser.run(PIXEL) == [6, 1, made.FINAL]
    assert browser.text(".badge") == "true final observation · truncated"
    assert browser.text("#step") == "end, 6"


def test_playing_to_the_end(browser: Browser, page: str) -> None:
    opened(browser, page, 1, 0)
    browser.type("#controls select", "120/s")
    browser.click("#controls .main")
    at(browser, 1, 6)
    assert browser.run("return document.querySelector('#controls .main').ariaLabel") == "Play (space)"


def test_pausing(browser: Browser, page: str) -> None:
    opened(browser, page, 1, 0)
    browser.type("#controls select", "1/s")
    browser.run("document.activeElement.blur()")
    browser.press(" ")
    assert browser.run("return document.querySelector('#controls .main').ariaLabel") == "Pause (space)"
    browser.press(" ")
    assert browser.run("return document.querySelector('#controls .main').ariaLabel") == "Play (space)"


def test_keys(browser: Browser, page: str) -> None:
    opened(browser, page, 1, 2)
    for key, episode, t in (
        (Keys.ARROW_RIGHT, 1, 3), (Keys.ARROW_LEFT, 1, 2), (Keys.END, 1, 6), (Keys.HOME, 1, 0),
        (Keys.SHIFT + Keys.ARROW_RIGHT, 1, 6), ("]", 2, 0), ("[", 1, 0),
    ):  # fmt: skip
        browser.press(key)
        at(browser, episode, t)
    browser.driver.find_element("id", "scroller").click()
    chosen = int(browser.run("return document.querySelector('#table tr[aria-selected=true]').dataset.number"))
    browser.press(Keys.ARROW_DOWN)
    at(browser, min(4, chosen + 1), 0)


def test_keys_are_letters_while_one_types(browser: Browser, page: str) -> None:
    opened(browser, page, 1, 2)
    browser.type("input[name=returnleast]", Keys.ARROW_RIGHT + Keys.HOME)
    assert browser.run("return document.querySelector('#screens canvas').dataset.step") == "2"


def test_many_moves_change_the_address_once(browser: Browser, page: str) -> None:
    opened(browser, page, 1, 0)
    script = """
    window.changes = 0;
    const replace = history.replaceState.bind(history);
    history.replaceState = (...given) => { window.changes += 1; replace(...given); };
    const slider = document.querySelector('#controls input');
    for (let turn = 0; turn < 300; turn += 1) { slider.value = turn % 5; slider.dispatchEvent(new Event('input')); }
    """
    browser.run(script)
    at(browser, 1, 4)
    assert browser.run("return window.changes") == 1


def test_scrubbing_on_a_curve_and_on_the_slider(browser: Browser, page: str) -> None:
    opened(browser, page, 1, 0)
    browser.click(".track[data-series=reward] svg")  # in its middle
    moved = int(browser.run("return document.querySelector('#screens canvas').dataset.step"))
    assert 2 <= moved <= 4
    browser.run("const s = document.querySelector('#controls input'); s.value = 5; s.dispatchEvent(new Event('input'))")
    at(browser, 1, 5)


def test_values_at_the_cursor(browser: Browser, page: str) -> None:
    opened(browser, page, 1, 2)
    assert browser.text(".track[data-series=reward] .values") == "2 · return so far 6"
    assert browser.text(".track[data-series=action] .values") == "2 RIGHT"
    assert browser.text(".track[data-series=value] .values") == "1"
    assert browser.texts(".track[data-series='obs/state'] .values span") == ["[0] 2", "[1] -2", "[2] 1"]
    assert len(browser.texts("#screens figure")) == 2  # cameras side by side


def test_sharing_a_moment(browser: Browser, page: str) -> None:
    opened(browser, page, 3, 2)
    assert browser.text("#which").startswith("Episode 3 (asked for) · 4 steps · return -2")
    assert browser.run("return document.querySelector('#table tr[aria-selected=true]').dataset.number") == "3"
    browser.run("location.hash = '#episode=0&t=1'")
    at(browser, 0, 1)
    browser.click("#controls button[aria-label^=Copy]")
    assert browser.run("return location.hash") == "#episode=0&t=1"
    browser.open(f"{page}#episode=77&t=2")
    assert browser.text("#trouble") == "there is no episode 77 here"
    browser.open(f"{page}#episode=1e3&t=x<b>")
    assert browser.run("return document.getElementById('trouble').hidden")


def test_an_episode_that_the_file_does_not_hold(browser: Browser, tmp_path: pathlib.Path) -> None:
    made.make(tmp_path / "a.replay")
    report(tmp_path / "a.replay", tmp_path / "a.html", episodes=[1])
    browser.open((tmp_path / "a.html").as_uri())
    at(browser, 1, 0)
    browser.click("#table tr[data-number='2'] td")
    assert f"diskreplay view {tmp_path}/a.replay" in browser.texts("#screens code")
    assert browser.run("return document.querySelector('#controls .main').disabled")
    browser.click("input[name=playable]")
    assert shown(browser) == ["1"]


def luminance(browser: Browser, selector: str, rule: str) -> float:
    """Relative luminance (WCAG 2) of a colour of an element, as it is drawn."""
    script = """
    const pen = new OffscreenCanvas(1, 1).getContext('2d');
    pen.fillStyle = getComputedStyle(document.querySelector(arguments[0]))[arguments[1]];
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
    """
    parts = np.array(browser.run(script, selector, rule)) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_light_and_dark_can_be_read(browser: Browser, page: str, dark: bool) -> None:
    browser.open(page, dark=dark)
    paper = luminance(browser, "body", "backgroundColor")
    assert (paper < 0.1) == dark
    card = luminance(browser, ".card", "backgroundColor")
    for selector in (".muted", "h2", "#table td", "#table th", ".figure span", ".good", "svg text", ".filters label"):
        rule = "fill" if selector.startswith("svg") else "color"
        ink = luminance(browser, selector, rule)
        contrast = (max(ink, card) + 0.05) / (min(ink, card) + 0.05)
        assert contrast >= 4.5, f"{selector}: {contrast:.1f}"
    browser.click("#theme")
    assert (luminance(browser, "body", "backgroundColor") < 0.1) != dark


@pytest.mark.parametrize("width", [360, 390, 768, 1280, 1920])
def test_it_fits_the_window(browser: Browser, page: str, width: int) -> None:
    browser.open(page, width=width)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    beyond = """const scrolled = '.wide-table, .scroller, .unseen, svg';
        const held = innerWidth > 820 ? '.scroller' : '.scroller, .wide-table';
        if ([...document.querySelectorAll(held)].some((one) => one.scrollWidth > one.clientWidth)) return [held];
        return [...document.querySelectorAll('main *')].filter((one) => !one.closest(scrolled)
        && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 80))"""
    assert browser.run(beyond) == []


@pytest.mark.parametrize(("width", "height"), [(390, 844), (768, 1024), (1440, 900)])
def test_the_first_screen_says_how_much_how_good_and_whole(
    browser: Browser, page: str, width: int, height: int
) -> None:
    browser.open(f"{page}#episode=1&t=0", width=width, height=height)
    at(browser, 1, 0)
    seen = ["#figures", ".figure:last-child .good", "#returns svg", "#screens canvas"]
    bottoms = browser.run(
        "return arguments[0].map((one) => document.querySelector(one).getBoundingClientRect().bottom)", seen
    )
    assert max(bottoms) <= height, dict(zip(seen, bottoms, strict=True))


@pytest.mark.parametrize("width", [768, 1440])
def test_no_chart_stands_alone_in_its_row(browser: Browser, page: str, width: int) -> None:
    browser.open(page, width=width)
    script = """
    const charts = document.getElementById('charts'), rows = {};
    while (charts.children.length < arguments[0]) charts.append(charts.lastChild.cloneNode());
    while (charts.children.length > arguments[0]) charts.lastChild.remove();
    for (const one of charts.children) (rows[one.offsetTop] ||= []).push(one.getBoundingClientRect());
    const edge = charts.getBoundingClientRect().right;
    return Object.values(rows).map((row) => [row.length, Math.round(edge - row.at(-1).right)]);
    """
    for count in range(10, 1, -1):
        rows = browser.run(script, count)
        assert sum(number for number, _ in rows) == count
        assert all(number > 1 and gap == 0 for number, gap in rows), (count, rows)


def test_sequences_of_vectors_are_curves(browser: Browser, tmp_path: pathlib.Path) -> None:
    space = spaces.Box(-np.inf, np.inf, (20, 16), np.float32)
    with dr.ReplayBuffer.create(tmp_path / "a.replay", space, made.ACTIONS, capacity=10) as buffer:
        for step in range(4):
            buffer.add(np.full((20, 16), step), 0, 0.0, np.full((20, 16), step + 1), step == 3, False)
    report(tmp_path / "a.replay", tmp_path / "a.html")
    browser.open(f"{(tmp_path / 'a.html').as_uri()}#episode=0&t=4")
    browser.wait("return document.querySelectorAll('.track[data-series=obs] path:not([class])').length === 8")
    assert browser.texts(".track[data-series=obs] .values span")[0] == "[19, 0] 4"
    assert browser.run("return document.querySelectorAll('canvas').length") == 0


def test_the_keys_are_shown(browser: Browser, page: str) -> None:
    opened(browser, page, 1, 2)
    browser.run("document.getElementById('scroller').focus()")
    kept = "const e = document.activeElement; return [e.id, e.ariaLabel, document.getElementById('keys').open]"
    focus = browser.run(kept)
    browser.press("?")
    assert browser.run(kept) == ["", "Close", True]
    browser.press(Keys.ARROW_RIGHT, "]")
    browser.press(Keys.ESCAPE)
    assert browser.run(kept) == focus
    at(browser, 1, 2)
    browser.click("#help")
    browser.press(Keys.ENTER)  # on the button that closes
    assert browser.run(kept)[0] == "help"


def test_what_is_typed_moves_nothing(browser: Browser, page: str) -> None:
    opened(browser, page, 1, 2)
    for key in ("?", "]", "-", "1", Keys.ARROW_LEFT, Keys.HOME, " "):
        browser.type("input[name=returnleast]", key)
    assert not browser.run("return document.getElementById('keys').open")
    at(browser, 1, 2)
    assert browser.run("return document.querySelector('input[name=returnleast]').value") == "-1"


def test_nothing_moves_while_it_is_drawn(browser: Browser, page: str) -> None:
    browser.open(page)
    at(browser, 0, 0)
    script = """
    const done = arguments[0];
    let total = 0;
    const watch = new PerformanceObserver((list) => { for (const one of list.getEntries()) total += one.value; });
    watch.observe({type: 'layout-shift', buffered: true});
    requestAnimationFrame(() => setTimeout(() => done(total), 50));
    """
    assert browser.driver.execute_async_script(script) < 0.1


def test_everything_has_a_name(browser: Browser, page: str) -> None:
    """For a screen reader: Chromium's own tree of what there is."""
    browser.open(page)
    at(browser, 0, 0)
    nodes = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = ("button", "combobox", "spinbutton", "checkbox", "slider", "image", "table", "region", "link")
    named = [n for n in nodes if not n["ignored"] and n.get("role", {}).get("value") in roles]
    assert len(named) > 30
    nameless = [n["role"]["value"] for n in named if not n.get("name", {}).get("value", "").strip()]
    assert nameless == []


def test_it_works_with_the_keyboard_alone(browser: Browser, page: str) -> None:
    browser.open(page)
    at(browser, 0, 0)
    reached = set()
    for _ in range(60):
        browser.press(Keys.TAB)
        script = "const e = document.activeElement; return e.id || e.name || e.ariaLabel || e.textContent"
        reached.add(browser.run(script))
    assert {"theme", "end", "returnleast", "Return", "scroller", "Play (space)", "Step of the episode"} <= reached


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_prints_in_dark_letters_on_white(browser: Browser, page: str, dark: bool) -> None:
    browser.open(page, media="print", dark=dark)
    assert browser.run("return getComputedStyle(document.getElementById('controls')).display") == "none"
    assert browser.run("return document.getElementById('scroller').clientHeight") > 5 * 32
    assert luminance(browser, "body", "backgroundColor") == 1
    for selector in ("#table td", ".figure b", ".muted"):
        assert luminance(browser, selector, "color") < 0.2, selector


def test_no_request_leaves_the_file(browser: Browser, page: str) -> None:
    opened(browser, page, 1, 2)
    browser.press("]", " ")
    assert [url.partition("#")[0] for url in browser.requests()] == [page]


NAMES = ["</script><script>document.title = 'hit'</script>", "<img src=x onerror=\"document.title = 'hit'\">"]


def test_hostile_names_stay_text(browser: Browser, tmp_path: pathlib.Path) -> None:
    told = {"env_id": "".join(NAMES), "action_meanings": [*NAMES, "__proto__"], "__proto__": NAMES, "toString": NAMES}
    with made.create(tmp_path / "a.replay", provenance=told) as buffer:
        for number in range(3):
            made.play(buffer, number, 4)
        buffer.checkpoint("img src=x onerror=alert()", metadata={NAMES[0]: NAMES, "__proto__": {"x": 1}})
    odd = (tmp_path / "a.replay").rename(tmp_path / "<img src=x onerror=alert()>")
    report(odd, tmp_path / "a.html")
    browser.open((tmp_path / "a.html").as_uri())
    at(browser, 2, 0)
    assert browser.text("#name") == "<img src=x onerror=alert()>"
    assert browser.text("#about").startswith("".join(NAMES))
    assert browser.run("return document.querySelectorAll('img, iframe, script:not([type])').length") == 1  # its own
    assert browser.text(".track[data-series=action] .values") == f"0 {NAMES[0][:40]}"
    assert browser.run("return document.title") == "<img src=x onerror=alert()> · diskreplay"
    assert NAMES[1] in browser.text("pre").replace('\\"', '"')


def test_a_hundred_thousand_episodes(browser: Browser, tmp_path: pathlib.Path) -> None:
    count = 100_000
    space, flags = spaces.Box(-1, 1, (1,), np.float32), np.ones(count, bool)
    with dr.ReplayBuffer.create(tmp_path / "a.replay", space, made.ACTIONS, capacity=count) as buffer:
        obs = np.zeros((count, 1), np.float32)
        buffer.extend(obs, np.zeros(count, int), np.arange(count), obs, flags, ~flags)
    assert report(tmp_path / "a.replay", tmp_path / "a.html").listed == count
    browser.open((tmp_path / "a.html").as_uri())
    browser.click("th[data-key=total_reward] button")
    assert shown(browser)[0] == "99,999"
    assert len(shown(browser)) < 60
    browser.run("document.getElementById('scroller').scrollTop = 1e9")
    browser.wait("return [...document.querySelectorAll('tr.episode')].some((one) => one.dataset.number === '0')")
    assert len(shown(browser)) < 60


def test_a_store_without_episodes(browser: Browser, tmp_path: pathlib.Path) -> None:
    made.create(tmp_path / "a.replay").close()
    report(tmp_path / "a.replay", tmp_path / "a.html")
    browser.open((tmp_path / "a.html").as_uri())
    assert browser.text("#table .none") == "There are no episodes yet."
    assert browser.text("#screens") == "There are no episodes yet."


def test_a_store_that_cannot_be_read(browser: Browser, tmp_path: pathlib.Path) -> None:
    made.make(tmp_path / "a.replay")
    shard = next((tmp_path / "a.replay").glob("streams/*/reward/c*"))
    shard.write_bytes(shard.read_bytes()[:-4])
    report(tmp_path / "a.replay", tmp_path / "a.html")
    browser.open((tmp_path / "a.html").as_uri())
    for selector in ("#table .none", "#screens"):
        assert browser.text(selector) == "No episode can be read: Health, below, says why."
    assert browser.text(".figure:last-child b") == "2 problems"  # the shard's size and its index
    browser.click(".figure:last-child a")
    browser.wait("return document.getElementById('health').getBoundingClientRect().top < innerHeight")


@pytest.mark.parametrize("name", ["cartpole-v1", "fetch-reach-v1", "pong-v1", "pong-window-v1", "simple-spread-v1"])
def test_real_stores(browser: Browser, tmp_path: pathlib.Path, name: str) -> None:
    shutil.copytree(DATASETS / f"{name}.replay", tmp_path / f"{name}.replay")
    report(tmp_path / f"{name}.replay", tmp_path / "a.html")
    browser.open((tmp_path / "a.html").as_uri(), width=400)
    browser.wait("return document.querySelectorAll('.track path').length > 2")
    assert browser.text(".figure:last-child b") == "healthy"
    if name.startswith("pong"):
        browser.wait("return document.querySelector('#screens canvas').dataset.step === '0'")
        assert browser.run("return document.querySelector('#screens canvas').width") == 84


# The same page from the server


@pytest.fixture
def served(tmp_path: pathlib.Path) -> Iterator[tuple[dr.ReplayBuffer, str]]:
    """A buffer that is written, and the address of its page."""
    with made.create(tmp_path / "a.replay") as buffer:
        for number in range(3):
            made.play(buffer, number, 5)
        buffer.commit()
        with Serving(buffer.path) as server:
            yield buffer, server.url


class Serving:
    """A server in a thread."""

    def __init__(self, path: str) -> None:
        self._server = Server(path)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Server:
        self._thread.start()
        return self._server

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def test_live_beside_a_writer(browser: Browser, served: tuple[dr.ReplayBuffer, str]) -> None:
    buffer, url = served
    browser.open(url)
    at(browser, 2, 0)  # the newest
    assert shown(browser) == ["0", "1", "2"]
    made.play(buffer, 3, 7)
    buffer.commit()
    browser.wait("return document.querySelectorAll('#table tr.episode').length === 4")
    browser.click("#table tr[data-number='3'] td")
    at(browser, 3, 0)
    browser.press(Keys.END)
    at(browser, 3, 7)
    assert browser.run(PIXEL) == [7, 3, made.FINAL]
    assert browser.text("#state").startswith("live · 22 transitions")


def test_a_strip_of_an_episode_is_one_request(browser: Browser, served: tuple[dr.ReplayBuffer, str]) -> None:
    _, url = served
    browser.open(f"{url}#episode=1&t=0")
    at(browser, 1, 0)
    for t in range(1, 6):
        browser.press(Keys.ARROW_RIGHT)
        at(browser, 1, t)
    asked = browser.requests()
    assert all(one.startswith(url) for one in asked)
    assert len([one for one in asked if "/strip?" in one and "camera=obs%2Fcamera" in one]) == 1


def test_the_server_stops(browser: Browser, tmp_path: pathlib.Path) -> None:
    made.make(tmp_path / "a.replay")
    with Serving(str(tmp_path / "a.replay")) as server:
        browser.open(server.url)
        at(browser, 4, 0)
    browser.wait("return document.getElementById('state').textContent === 'the server has stopped'")
    assert all("ERR_CONNECTION" in line or "ERR_EMPTY" in line for line in browser.log())
