// The pages in a browser: what they show, that it moves, keyboard, colours, width and accessibility.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";

import { missing, startBrowser, startMesh } from "./mesh.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Pages, and a text that shows that their data has arrived. */
const PAGES = [
  ["namespaces", "/namespaces", "th", "bank"],
  ["namespace", "/namespaces/shop", "th", "catalog"],
  ["kind", "/namespaces/shop/statefulsets", "th", "stock"],
  ["workload", "/namespaces/shop/deployments/web", "td", "ingress.edge.serviceaccount"],
  ["service", "/namespaces/shop/services/web", "td", "ingress.edge.serviceaccount"],
  ["topology", "/topology?namespace=bank", "svg", "ledger"],
  ["topology-all", "/topology", "svg", "edge"],
  ["tap", "/tap?resource=deploy%2Fweb&namespace=shop", "code", "meshctl viz tap deploy/web"],
  ["top", "/top?resource=deploy%2Fweb&namespace=shop", "code", "meshctl viz top deploy/web"],
  ["routes", "/routes?namespace=shop", "th", "GET /products"],
  ["controlplane", "/controlplane", "p", "The checks pass"],
  ["gateways", "/gateways", "p", "No cluster is linked"],
  ["extensions", "/extensions", "li", "linkerd-viz"],
  ["missing", "/namespaces/shop/secrets", "h1", "Not found"],
];

const PHONE = { width: 390, height: 844 };
const DESKTOP = { width: 1360, height: 900 };

const pictures = process.env.SCREENSHOTS;
if (pictures) mkdirSync(pictures, { recursive: true });

const reason = missing();

describe("dashboard", { skip: reason, timeout: 600_000 }, () => {
  let mesh;
  let browser;

  before(async () => {
    mesh = await startMesh();
    browser = await startBrowser();
  });

  after(async () => {
    await browser?.close();
    mesh?.stop();
  });

  /** Opens a page that reports its errors; the test fails with them. */
  async function open(path, options = {}, check = () => undefined) {
    const context = await browser.newContext({ viewport: DESKTOP, ...options });
    context.setDefaultTimeout(15_000);
    const page = await context.newPage();
    const problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) problems.push(message.text());
    });
    try {
      await page.goto(mesh.url + path);
      await check(page);
      assert.deepEqual(problems, []);
    } finally {
      await context.close();
    }
  }

  const shown = (page, selector, text) => page.locator(selector, { hasText: text }).first().waitFor();

  async function picture(page, name) {
    if (!pictures) return;
    await page.screenshot({ path: join(pictures, `${name}.png`) });
    await page.screenshot({ path: join(pictures, `${name}-all.png`), fullPage: true });
  }

  async function accessible(page) {
    // Not by a script element, which the policy of the page refuses.
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() =>
      window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }),
    );
    const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`);
    assert.deepEqual(found, []);
  }

  for (const [name, path, selector, text] of PAGES) {
    for (const colorScheme of ["light", "dark"]) {
      test(`${name} is shown and accessible, ${colorScheme}`, async () => {
        await open(path, { colorScheme }, async (page) => {
          await shown(page, selector, text);
          await accessible(page);
          await picture(page, `${name}-${colorScheme}`);
        });
      });
    }
    test(`${name} fits on a phone`, async () => {
      await open(path, { viewport: PHONE }, async (page) => {
        await shown(page, selector === "code" ? "h1" : selector, selector === "code" ? "T" : text);
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(width <= PHONE.width, `${width} px`);
        await accessible(page);
        await picture(page, `${name}-phone`);
      });
    });
  }

  test("numbers move without being asked for, in one stream", async () => {
    await open("/namespaces", {}, async (page) => {
      await shown(page, "th", "shop");
      await page.locator("text=Grafana").waitFor();
      const requests = [];
      page.on("request", (request) => requests.push(new URL(request.url()).pathname));
      const rps = page.locator("tr", { hasText: "shop" }).locator("td").nth(2);
      const first = await rps.innerText();
      await page.waitForFunction(
        ([row, before]) => {
          const found = [...document.querySelectorAll("tr")].find((it) => it.innerText.startsWith(row));
          return found && found.children[3].innerText !== before;
        },
        ["shop", first],
      );
      assert.deepEqual(requests.filter((path) => path.startsWith("/api/")), []);
      await page.locator(".sparkline polyline").first().waitFor();
      // Another page has another stream, and only one.
      await page.locator("a", { hasText: /^shop$/ }).first().click();
      await shown(page, "th", "catalog");
      assert.deepEqual(requests.filter((path) => path.startsWith("/api/")), ["/api/stream"]);
    });
  });

  test("tap shows requests, their details and stops", async () => {
    await open("/tap", {}, async (page) => {
      await shown(page, "h1", "Tap");
      await page.getByLabel(/^Namespace/).selectOption("shop");
      await page.getByLabel(/^Resource/).selectOption("deployment/web");
      await page.getByLabel("Path begins with").fill("/products");
      await shown(page, "code", "meshctl viz tap deployment/web --namespace shop --path /products");
      await page.getByRole("button", { name: "Start" }).click();
      await shown(page, ".requests .request", "/products");
      await shown(page, ".requests td", "200");
      await page.locator(".request").last().click();
      await shown(page, ".detail", "web.shop.svc.cluster.local:8080");
      await accessible(page);
      await picture(page, "tap-running");
      await page.getByRole("button", { name: "Stop" }).click();
      await page.getByRole("button", { name: "Start" }).waitFor();
    });
  });

  test("top counts requests by path", async () => {
    await open("/top?resource=deploy%2Fweb&namespace=shop", {}, async (page) => {
      await page.getByRole("button", { name: "Start" }).click();
      await shown(page, "th", "/products/17");
      await page.waitForFunction(() => Number(document.querySelector("tbody td.number")?.innerText) >= 3);
      await accessible(page);
      await picture(page, "top-running");
    });
  });

  test("workload shows its live requests", async () => {
    await open("/namespaces/shop/deployments/web", {}, async (page) => {
      await page.getByRole("button", { name: "Start tap" }).click();
      await shown(page, ".requests .request", "/cart");
    });
  });

  test("workload shows who may connect, and follows changes", async () => {
    const own = await startMesh();
    const context = await browser.newContext({ viewport: DESKTOP });
    try {
      const page = await context.newPage();
      await page.goto(`${own.url}/namespaces/shop/deployments/web`);
      const policies = page.locator("section", { has: page.getByRole("heading", { name: "Policies", exact: true }) });
      const row = (text) => policies.locator("tr", { hasText: text });
      await row("shop/ingress-only").getByText("ingress.edge.serviceaccount.identity.linkerd.cluster.local").waitFor();
      await policies.getByText("Server shop/web-http, protocol HTTP/1").waitFor();
      await row("HTTPRoute shop/products").getByText("from 10.0.0.0/8 except 10.9.0.0/16").waitFor();
      await row("HTTPRoute shop/products").getByText("GET /products/*").waitFor();
      await row("HTTPRoute shop/orders").getByText("those of the port").waitFor();
      await policies.getByText("No Server selects it; the default policy is all-unauthenticated").waitFor();
      await policies.getByText("Connections bypass the proxy").waitFor();
      const file = join(own.manifests, "shop.yaml");
      writeFileSync(file, readFileSync(file, "utf8").replaceAll("ingress-only", "no-longer-only"));
      await row("shop/no-longer-only").waitFor();
      assert.equal(await row("shop/ingress-only").count(), 0);
    } finally {
      await context.close();
      own.stop();
    }
  });

  test("workload shows redirection, identities and certificates of its proxies", async () => {
    await open("/namespaces/shop/deployments/web", {}, async (page) => {
      const proxies = page.locator("section", { has: page.getByRole("heading", { name: "Proxies", exact: true }) });
      const row = proxies.locator("tr", { hasText: "web-7f9c6-q8zlm" });
      await row.getByText("node-b").waitFor();
      await row.getByText("nft", { exact: true }).waitFor();
      await row.getByText("web.shop.serviceaccount.identity.linkerd.cluster.local").waitFor();
      await row.getByText("16 h left").waitFor();
      // Below the bar at the top.
      await proxies.evaluate((section) => window.scrollTo(0, section.offsetTop - 70));
      await picture(page, "workload-policies-light");
    });
  });

  test("workload without pods says so", async () => {
    await open("/namespaces/shop/deployments/catalog", {}, async (page) => {
      await shown(page, ".empty", "It has no running pods that declare ports.");
      await accessible(page);
    });
  });

  test("service shows its endpoints with their load", async () => {
    await open("/namespaces/shop/services/web", {}, async (page) => {
      const endpoints = page.locator("section", { has: page.getByRole("heading", { name: "Endpoints", exact: true }) });
      const cells = endpoints.locator("tr", { hasText: "web-7f9c6-q8zlm" }).locator("td");
      await cells.first().waitFor();
      const texts = (await cells.allInnerTexts()).map((text) => text.trim());
      assert.deepEqual(texts, ["10.1.0.6:8080", "ready", "node-b", "west-1", "99.71%", "118", "41 ms", "3"]);
    });
  });

  test("pages say what is missing while other servers are down", async () => {
    const own = await startMesh({ policy: false, prometheus: false });
    const context = await browser.newContext({ viewport: DESKTOP });
    try {
      const page = await context.newPage();
      await page.goto(`${own.url}/namespaces/shop/services/web`);
      await shown(page, ".problem", "Cannot show policies: cannot get policies from the policy controller");
      await shown(page, ".problem", "Cannot show certificates and redirection");
      await shown(page, ".problem", "Cannot show the load");
      await shown(page, "th", "web-7f9c6-q8zlm");
      await accessible(page);
    } finally {
      await context.close();
      own.stop();
    }
  });

  test("service has a file for a ServiceProfile", async () => {
    await open("/routes?namespace=shop", {}, async (page) => {
      await page.getByText("Describe the routes of a Service").click();
      const [file] = await Promise.all([
        page.waitForEvent("download"),
        page.getByRole("link", { name: "web-profile.yml" }).click(),
      ]);
      assert.equal(file.suggestedFilename(), "web-profile.yml");
      assert.match(readFileSync(await file.path(), "utf8"), /name: web\.shop\.svc\.cluster\.local/);
      // The page is still there.
      await shown(page, "h1", "Routes");
    });
  });

  test("user without the right to tap is told", async () => {
    await open("/tap?resource=deploy%2Fforbidden&namespace=shop", {}, async (page) => {
      await page.getByRole("button", { name: "Start" }).click();
      await shown(page, ".problem", "missing authorization");
      await page.getByRole("button", { name: "Start" }).waitFor();
    });
  });

  test("keyboard searches, chooses and goes to pages", async () => {
    await open("/namespaces", {}, async (page) => {
      await shown(page, "th", "shop");
      await page.keyboard.press("/");
      await page.getByRole("combobox").waitFor();
      await page.keyboard.type("shop catal");
      await shown(page, "[aria-selected=true]", "shop/catalog");
      await accessible(page);
      await picture(page, "search-light");
      await page.keyboard.press("Enter");
      await page.waitForURL("**/namespaces/shop/deployments/catalog");
      assert.equal(await page.evaluate(() => document.activeElement.tagName), "H1");
      await page.keyboard.press("/");
      await page.getByRole("combobox").waitFor();
      await page.keyboard.press("Escape");
      await page.getByRole("combobox").waitFor({ state: "detached" });
      await page.keyboard.press("g");
      await page.keyboard.press("t");
      await page.waitForURL("**/tap");
      await page.goBack();
      await shown(page, "h1", "catalog");
    });
  });

  test("every control is reached with the Tab key and shows it", async () => {
    await open("/namespaces/shop", {}, async (page) => {
      await shown(page, "th", "catalog");
      const reached = new Set();
      for (let presses = 0; presses < 80; presses += 1) {
        await page.keyboard.press("Tab");
        const [id, outline] = await page.evaluate(() => {
          const all = [...document.querySelectorAll("a, button, input, select, [tabindex='0']")];
          const style = getComputedStyle(document.activeElement);
          return [all.indexOf(document.activeElement), style.outlineStyle];
        });
        if (id < 0) continue;
        if (reached.has(id)) break;
        reached.add(id);
        assert.notEqual(outline, "none", `control ${id}`);
      }
      const count = await page.locator("a, button, input, select, [tabindex='0']").count();
      assert.equal(reached.size, count);
    });
  });

  test("table sorts and filters", async () => {
    await open("/namespaces/shop", {}, async (page) => {
      await shown(page, "th", "catalog");
      const names = () => page.locator("tbody th").allInnerTexts();
      assert.equal((await names())[0], "web");
      await page.getByRole("button", { name: "Name" }).click();
      assert.deepEqual((await names()).slice(0, 2), ["cart", "catalog"]);
      await page.getByLabel("Pods, ReplicaSets and Services too").check();
      await page.getByLabel("Filter Workloads of shop").fill("pod stock");
      assert.deepEqual(await names(), ["stock-0", "stock-1"]);
    });
  });

  test("choice of colours is kept", async () => {
    await open("/namespaces", { colorScheme: "light" }, async (page) => {
      await shown(page, "th", "shop");
      const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      const light = await back();
      const button = page.getByRole("button", { name: /^Colours/ });
      await button.click();
      await button.click();
      assert.notEqual(await back(), light);
      await page.reload();
      await shown(page, "th", "shop");
      assert.notEqual(await back(), light);
    });
  });

  test("page says when the connection is lost", async () => {
    const own = await startMesh();
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(`${own.url}/namespaces`);
    await shown(page, ".connection", "live");
    own.stop();
    await shown(page, ".connection", "connection lost");
    await context.close();
  });

  test("page of another origin can neither read, embed nor tap", async () => {
    const context = await browser.newContext();
    const page = await context.newPage();
    // The same address by another name is another origin.
    const other = mesh.url.replace("127.0.0.1", "localhost");
    await page.goto(`${other}/api/version`);
    const results = await page.evaluate(async (url) => {
      const read = await fetch(`${url}/api/version`).then(() => "read", () => "refused");
      const tap = await new Promise((resolve) => {
        const socket = new WebSocket(`${url.replace("http", "ws")}/api/tap`);
        socket.onopen = () => resolve("open");
        socket.onerror = () => resolve("refused");
      });
      return [read, tap];
    }, mesh.url);
    assert.deepEqual(results, ["refused", "refused"]);
    await context.close();
  });
});
