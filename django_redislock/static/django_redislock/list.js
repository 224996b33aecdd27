/* The list of active locks: the durations that count on between two refreshes, the boxes, and the
 * refresh, which the dashboard has, too. Without this file both are plain pages. */
"use strict";
{
    const SWAPPED = [
        "#redislock-notes",
        "#redislock-states",
        "#redislock-pages",
        "#redislock-pages-above", // of Grappelli
        "#redislock-all",
        "#toolbar span.quiet",
        "#redislock-live",
    ];
    const KEPT = "django_redislock.refresh";
    const PATIENCE = 20000;
    const LATE_SECONDS = 3; // a refresh may be late by this much

    const find = (selector, root = document) => root.querySelector(selector);
    const table = (root = document) => find("#result_list", root)?.parentElement;
    const all = (selector, root = document) => [...root.querySelectorAll(selector)];

    // What runs down. Only seconds since the page was drawn count: the clock may be wrong. It runs
    // only while the page is refreshed. Otherwise everything stands as it was at the time that the
    // page shows, because locks are renewed and released without its knowledge.

    let drawn = performance.now();

    function passedSeconds() {
        const passed = (performance.now() - drawn) / 1000;
        const seconds = Number(choice.value);
        const isRefreshed = seconds > 0 && !failed && passed < seconds + LATE_SECONDS;
        return isRefreshed ? passed : 0;
    }

    function duration(seconds) {
        const two = (number) => String(number).padStart(2, "0");
        if (seconds < 10) return `${Math.max(seconds, 0).toFixed(1)}s`;
        if (seconds < 60) return `${Math.floor(seconds)}s`;
        const minutes = Math.floor(seconds / 60);
        if (minutes < 60) return `${minutes}m ${two(Math.floor(seconds) % 60)}s`;
        const hours = Math.floor(minutes / 60);
        if (hours < 24) return `${hours}h ${two(minutes % 60)}m`;
        return `${Math.floor(hours / 24)}d ${hours % 24}h`;
    }

    // A time that stands is as the server wrote it, which may round in another way.
    function show(text, seconds, passed) {
        text.dataset.written ??= text.textContent;
        text.textContent = passed ? duration(seconds) : text.dataset.written;
    }

    function runDown() {
        const passed = passedSeconds();
        // Not beyond the moment at which a renewal is due: only the next refresh shows whether it
        // came.
        const known = (text) =>
            Math.min(passed, Number(text.closest("[data-most]")?.dataset.most ?? Infinity));
        for (const text of all("[data-age]")) {
            show(text, Number(text.dataset.age) + known(text), known(text));
        }
        for (const text of all("[data-left]")) {
            const left = Number(text.dataset.left) - known(text);
            show(text, left, known(text));
            const meter = text.closest(".redislock-lease")?.querySelector("meter");
            if (meter) meter.value = Math.max(left, 0);
        }
    }

    // The boxes. What is checked stays what its user saw: a lock that changes hands afterwards
    // is not released.

    const form = find("#changelist-form, #grp-changelist-form");
    const elsewhere = find("#redislock-elsewhere");
    let lastClicked = null;

    const boxes = () => all("#result_list input.action-select");
    const boxesAnywhere = () => all("input.action-select", form);
    const rowOf = (element) => element.closest("tr");
    const keyOf = (row) => find("th a, td a", row)?.getAttribute("href");

    function showSelection() {
        const now = boxesAnywhere();
        const checked = now.filter((box) => box.checked);
        now.forEach((box) => rowOf(box)?.classList.toggle("selected", box.checked));
        const counter = find("span.grp-action-counter") ?? find(".action-counter");
        if (counter) {
            const counts = { sel: checked.length, cnt: now.length };
            counter.textContent = interpolate(
                ngettext("%(sel)s of %(cnt)s selected", "%(sel)s of %(cnt)s selected", counts.sel),
                counts,
                true,
            );
        }
        const toggle = find("#action-toggle");
        if (toggle) toggle.checked = now.length > 0 && checked.length === now.length;
    }

    function clicked(event) {
        const box = event.target;
        if (box.id === "action-toggle") {
            boxesAnywhere().forEach((each) => (each.checked = box.checked));
            showSelection();
        } else if (box.matches("input.action-select")) {
            const row = rowOf(box); // none where the row went elsewhere
            if (row && event.shiftKey) checkBetween(boxes(), box);
            lastClicked = row && keyOf(row);
            showSelection();
        }
    }

    function checkBetween(now, box) {
        const from = now.findIndex((each) => keyOf(rowOf(each)) === lastClicked);
        const to = now.indexOf(box);
        if (from < 0) return;
        const between = now.slice(Math.min(from, to), Math.max(from, to) + 1);
        between.forEach((each) => (each.checked = box.checked));
    }

    // Row by row: its key, and of a checked one what was seen and a name to show.
    function selection() {
        const chosen = new Map();
        for (const box of all("input.action-select:checked", form)) {
            const row = rowOf(box);
            const label = row ? find("th a, td a", row) : box.parentElement;
            const key = row ? keyOf(row) : box.dataset.key;
            chosen.set(key, { seen: box.value, name: label.textContent.trim() });
        }
        return chosen;
    }

    function select(chosen) {
        for (const box of boxes()) {
            const kept = chosen.get(keyOf(rowOf(box)));
            if (!kept) continue;
            box.checked = true;
            box.value = kept.seen;
            chosen.delete(keyOf(rowOf(box)));
        }
        elsewhere.hidden = chosen.size === 0;
        elsewhere.replaceChildren(`${choice.dataset.elsewhere.replace("{count}", chosen.size)} `);
        for (const [key, kept] of chosen) elsewhere.append(boxElsewhere(key, kept));
        showSelection();
    }

    // A lock that was checked and then came free, or went to another page.
    function boxElsewhere(key, kept) {
        const label = document.createElement("label");
        const box = document.createElement("input");
        Object.assign(box, {
            type: "checkbox",
            name: "_selected_action",
            value: kept.seen,
            className: "action-select",
            checked: true,
        });
        box.dataset.key = key;
        label.append(box, ` ${kept.name}`);
        return label;
    }

    // The live refresh.

    const choice = find("#redislock-refresh");
    const status = find("#redislock-status");
    let timer = null;
    let underWay = null;
    let failed = false;
    let took = 0; // the milliseconds of the last answer

    async function refresh() {
        if (underWay || document.hidden) return;
        underWay = new AbortController();
        const began = performance.now();
        const limit = setTimeout(() => underWay.abort(), PATIENCE);
        try {
            const options = { signal: underWay.signal, cache: "no-store" };
            const response = await fetch(location.href, options);
            const page = new DOMParser().parseFromString(await response.text(), "text/html");
            const isSame = response.ok && !response.redirected && find("#redislock-refresh", page);
            if (!isSame) throw new Error(response.status);
            swap(page);
            tell(false);
        } catch (error) {
            tell(true);
        } finally {
            clearTimeout(limit);
            underWay = null;
            took = performance.now() - began;
            plan();
        }
    }

    // Said once, when it begins to fail and when it works again.
    function tell(failing) {
        if (failing !== failed) {
            status.textContent = failing ? choice.dataset.failed : choice.dataset.works;
        }
        status.classList.toggle("is-failing", failing);
        failed = failing;
        runDown();
    }

    function swap(page) {
        if (Number(choice.value) === 0) return; // turned off meanwhile
        if (isTextSelected()) return; // to be copied
        const chosen = form && selection();
        const focused = focus();
        const unfolded = all(".redislock-figures").map((each) => each.open);
        SWAPPED.forEach((selector) => {
            find(selector)?.replaceWith(find(selector, page) ?? "");
        });
        if (form) swapRows(table(page));
        const actions = find(".actions", page); // an empty list has none
        if (form && actions && !find(".actions")) elsewhere.after(actions);
        all(".redislock-figures").forEach((each, place) => (each.open = unfolded[place] ?? false));
        drawn = performance.now();
        if (form) select(chosen);
        focused?.();
        document.dispatchEvent(new CustomEvent("redislock:refreshed"));
    }

    function isTextSelected() {
        const text = getSelection();
        const results = table() ?? find("#redislock-live");
        return results && !text.isCollapsed && text.containsNode(results, true);
    }

    function swapRows(results) {
        const here = table();
        if (!here || !results) {
            here?.remove();
            if (results) (find(".actions", form) ?? elsewhere).after(results);
            return;
        }
        // The rows alone, so that the table stays where it was scrolled to, unless a second cache
        // alias adds a column.
        const headers = (root) => find("thead", root).textContent;
        const rows = (root) => all("#result_list > tbody", root); // Unfold has one for each row
        if (headers(here) === headers(results)) {
            const before = rows(here);
            find("#result_list", here).append(...rows(results));
            before.forEach((each) => each.remove());
        } else {
            find("#result_list", here).replaceWith(find("#result_list", results));
        }
    }

    // What gives the focus back to the same thing in the same row.
    function focus() {
        const active = document.activeElement;
        const row = active?.closest("#result_list tbody tr");
        if (row) {
            const key = keyOf(row);
            const place = all("a, input", row).indexOf(active);
            return () => {
                const again = all("#result_list tbody tr").find((each) => keyOf(each) === key);
                if (again) all("a, input", again)[place]?.focus({ preventScroll: true });
            };
        }
        const part = SWAPPED.find((selector) => find(selector)?.contains(active));
        if (!part) return null;
        const stops = "a, button, summary, [tabindex]";
        // By what it says, because rows before it may come and go.
        const isSame = (each) =>
            ["tagName", "href", "textContent"].every((name) => each[name] === active[name]);
        const before = all(stops, find(part));
        const [place, number] = [before, before.filter(isSame)].map((each) => each.indexOf(active));
        return () => {
            const after = all(stops, find(part) ?? document.body);
            const again = after.filter(isSame)[number] ?? after[place];
            again?.focus({ preventScroll: true });
        };
    }

    function plan() {
        clearTimeout(timer);
        const seconds = Number(choice.value);
        // A slow page costs its server much, so it takes at most a fifth of the time.
        const pause = Math.max(seconds * 1000, took * 4);
        if (seconds && !document.hidden) timer = setTimeout(refresh, pause);
    }

    function remembered() {
        try {
            return localStorage.getItem(KEPT);
        } catch {
            return null; // a browser that keeps nothing
        }
    }

    function choose() {
        try {
            localStorage.setItem(KEPT, choice.value);
        } catch {
            // It holds for this page alone.
        }
        runDown();
        plan();
    }

    function begin() {
        choice.form.hidden = false;
        const kept = remembered();
        if (all("option", choice).some((option) => option.value === kept)) choice.value = kept;
        choice.addEventListener("change", choose);
        choice.form.addEventListener("submit", (event) => event.preventDefault());
        form?.addEventListener("click", clicked);
        if (form) addEventListener("pageshow", showSelection);
        document.addEventListener("visibilitychange", () => {
            if (document.hidden) clearTimeout(timer);
            else if (Number(choice.value)) refresh();
            runDown();
        });
        if (form) showSelection();
        setInterval(() => document.hidden || runDown(), 1000);
        plan();
    }

    // The buttons that copy a command. Browsers allow that on secure pages only.
    for (const button of all("button[data-copy]")) {
        button.hidden = !navigator.clipboard;
        button.addEventListener("click", async () => {
            await navigator.clipboard.writeText(button.dataset.copy);
            button.textContent = button.dataset.copied;
        });
    }

    if (choice) begin(); // other pages have no refresh
}
