"use strict";
(() => {
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById("data").textContent).charts;
  const drawn = (window.adadpCharts = {});
  const SYMBOLS = ["circle", "rect", "triangle", "diamond", "emptyCircle", "emptyRect", "emptyTriangle", "emptyDiamond"];

  // The theme: what the system prefers, unless the reader has chosen.
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => {
    try { return localStorage.getItem("adadp-theme"); } catch { return null; }
  };
  const setTheme = (name) => {
    root.dataset.theme = name;
    document.getElementById("theme").textContent = name === "dark" ? "Light" : "Dark";
  };
  const follow = () => setTheme(remembered() || (system.matches ? "dark" : "light"));

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  // The last digit of a bound is rounded up: what is read still holds.
  const roundedUp = (value, digits) => {
    const near = Number(value.toPrecision(digits));
    return near < value ? near + 10 ** (Math.floor(Math.log10(value)) + 1 - digits) : near;
  };
  const short = (value, bound) => {
    const size = Math.abs(value);
    const far = size !== 0 && (size < 1e-3 || size >= 1e6);
    const kept = bound ? roundedUp(value, far ? 3 : 4) : value;
    return far ? kept.toExponential(2).replace(/\.?0+e/, "e") : String(Number(kept.toPrecision(4)));
  };
  const shown = (axis, value) => {
    if (typeof value === "string") return value;
    return axis.percent ? (100 * value).toFixed(2) + " %" : short(value, axis.bound);
  };
  const escaped = (text) => echarts.format.encodeHTML(String(text));

  // An axis of shares does not go on beyond 100 %. Around values that are all the same ECharts would make room of their
  // half: it begins with the tenth below them instead.
  const notAbove1 = ({ min, max }) => (max <= 1 && max + 0.2 * (max - min) > 1 ? 1 : null);
  const tenthBelow = ({ min, max }) => (max > min ? null : Math.max(0, (Math.ceil(10 * min) - 1) / 10));

  const axisOption = (axis, paint, place) => ({
    name: axis.label,
    nameLocation: "middle",
    nameGap: place === "x" ? 28 : 12,
    nameMoveOverlap: true,
    nameTextStyle: { color: paint.soft, fontSize: 12.5 },
    type: axis.scale === "linear" ? "value" : axis.scale,
    scale: !axis.zero,
    minInterval: axis.whole ? 1 : 0,
    min: axis.percent && !axis.zero ? tenthBelow : null,
    max: axis.percent ? notAbove1 : null,
    axisLine: { show: place === "x", lineStyle: { color: paint.line } },
    axisTick: { show: false },
    splitLine: { show: place === "y", lineStyle: { color: paint.line } },
    axisLabel: {
      color: paint.soft,
      fontSize: 12,
      hideOverlap: true,
      formatter: (value) =>
        typeof value === "string" ? value : axis.percent ? Number((100 * value).toFixed(2)) + " %" : short(value),
    },
  });

  // Ends of a logarithmic axis close to the data, not at the next powers of ten.
  const logEnds = (values) => {
    const positive = values.filter((value) => typeof value === "number" && value > 0);
    return { min: Math.min(...positive) / 1.25, max: Math.max(...positive) * 1.25 };
  };

  // Labels at the values themselves where they are few, otherwise at 1, 2 and 5 of every power of ten.
  const logTicks = (axis, values, exact) => {
    if (axis.scale !== "log") return {};
    const ends = logEnds(values);
    const round = [];
    for (let power = Math.floor(Math.log10(ends.min)); power <= Math.log10(ends.max); power += 1) {
      const steps = ends.max / ends.min > 1e4 ? [1] : [1, 2, 5];
      round.push(...steps.map((step) => Number((step * 10 ** power).toPrecision(2))));
    }
    const distinct = [...new Set(values)].sort((a, b) => a - b);
    const customValues = exact && distinct.length <= 8
      ? distinct : round.filter((value) => value >= ends.min && value <= ends.max);
    return { ...ends, axisLabel: { customValues }, axisTick: { customValues } };
  };

  const merged = (first, second) => ({
    ...first,
    ...second,
    axisLabel: { ...first.axisLabel, ...(second.axisLabel || {}) },
    axisTick: { ...first.axisTick, ...(second.axisTick || {}) },
  });

  const hasBar = (series, i) => Boolean(series.low) && series.low[i] !== null && series.low[i] < series.high[i];

  // The value beside a bar or a dot; where there is an error bar, beyond its end.
  const valueLabel = (axis, paint, value) => ({
    show: true, color: paint.ink, opacity: 1, fontSize: 12, formatter: () => (value === null ? "" : shown(axis, value)),
  });

  const errorBars = (chart, series, paint, place, flat) => {
    if (!series.low) return undefined;
    const at = (x, y) => (flat ? [y, x] : [x, y]);
    const data = series.x.flatMap((x, i) => {
      if (!hasBar(series, i)) return [];
      const label = flat ? { ...valueLabel(chart.y, paint, series.y[i]), position: "end", distance: 8 } : { show: false };
      return [[{ coord: at(x, series.low[i]), label }, { coord: at(x, series.high[i]) }]];
    });
    return {
      silent: true, animation: false, symbol: "rect", symbolSize: [9, 1.6], data,
      lineStyle: { type: "solid", width: 1.6, color: paint.series[place], opacity: 0.75 },
    };
  };

  // ECharts looks at the points alone; an error bar that ends outside of the axis would not be drawn at all.
  const endsWithBars = (chart) => {
    const ends = chart.series.flatMap((each) => [...(each.low || []), ...(each.high || []), ...each.y]);
    const known = ends.filter((value) => typeof value === "number");
    if (chart.y.scale !== "linear" || !chart.series.some((each) => each.low) || !known.length) return {};
    const [least, most] = [Math.min(...known), Math.max(...known)];
    const sixth = (most - least || Math.abs(most) || 1) / 6;
    const power = 10 ** Math.floor(Math.log10(sixth));
    const unit = power * [1, 2, 5, 10].find((times) => times * power >= sixth);
    const rounded = (value) => Number((value * unit).toPrecision(12));
    const max = rounded(Math.ceil(most / unit));
    return {
      interval: unit,
      min: chart.y.zero ? Math.min(0, rounded(Math.floor(least / unit))) : rounded(Math.floor(least / unit)),
      max: chart.y.percent && most <= 1 ? Math.min(1, max) : max,
    };
  };

  const tooltip = (chart, paint) => ({
    trigger: chart.x.scale === "category" ? "item" : "axis",
    confine: true,
    backgroundColor: paint.card,
    borderColor: paint.line,
    textStyle: { color: paint.ink, fontSize: 13 },
    axisPointer: { type: "line", lineStyle: { color: paint.soft, type: "dashed" }, label: { show: false } },
    formatter: (found) => {
      const points = (Array.isArray(found) ? found : [found]).filter((point) => point.value[1] !== null);
      if (!points.length) return "";
      const flat = chart.kind === "bar" || chart.kind === "dots";
      const [at, worth] = flat ? [1, 0] : [0, 1];
      const head = flat ? points[0].value[at] : `${chart.x.label} ${shown(chart.x, points[0].value[at])}`;
      const lines = points.map((point) => {
        const series = chart.series[point.seriesIndex];
        const low = series.low && series.low[point.dataIndex];
        const ends = typeof low === "number"
          ? ` (${shown(chart.y, low)} to ${shown(chart.y, series.high[point.dataIndex])})` : "";
        return `${point.marker}${escaped(series.name)} <b>${shown(chart.y, point.value[worth])}</b>${ends}`;
      });
      return [escaped(head), ...lines].join("<br>");
    },
  });

  const optionOf = (chart) => {
    const paint = {
      ink: colour("--ink"), soft: colour("--soft"), line: colour("--line"), card: colour("--card"),
      series: chart.series.map((each) => colour(`--s${each.style % 8}`)),
    };
    const flat = chart.kind === "bar" || chart.kind === "dots";
    const numbers = (name) => chart.series.flatMap((each) => each[name]).filter((value) => value !== null);
    const several = chart.series.length > 1;
    const values = merged(axisOption(chart.y, paint, flat ? "x" : "y"), logTicks(chart.y, numbers("y"), false));
    const places = merged(axisOption(chart.x, paint, flat ? "y" : "x"), logTicks(chart.x, numbers("x"), true));
    Object.assign(values, endsWithBars(chart));
    if (flat) {
      Object.assign(values, { splitLine: { show: true, lineStyle: { color: paint.line } }, scale: chart.kind === "dots" });
      Object.assign(places, { inverse: true, name: "", splitLine: { show: false } });
      places.data = [...new Set(numbers("x"))];
    }
    const series = chart.series.map((each, i) => ({
      name: each.name,
      type: { bar: "bar", dots: "scatter" }[chart.kind] || "line",
      step: chart.kind === "step" ? "middle" : undefined,
      data: each.x.map((x, k) => (flat ? [each.y[k], x] : [x, each.y[k]])),
      symbol: SYMBOLS[each.style % SYMBOLS.length],
      symbolSize: chart.kind === "dots" ? 13 : chart.kind === "step" || each.x.length > 60 ? 0 : 7,
      showAllSymbol: each.x.length <= 60,
      barWidth: 16,
      barGap: "-100%",
      color: paint.series[i],
      itemStyle: { color: paint.series[i], opacity: 1, borderRadius: chart.kind === "bar" ? [0, 4, 4, 0] : 0 },
      lineStyle: { width: 2.2, type: each.dashed ? "dashed" : "solid" },
      label: {
        show: flat, position: "right", color: paint.ink, fontSize: 12,
        formatter: ({ dataIndex: k }) => (each.y[k] === null || hasBar(each, k) ? "" : shown(chart.y, each.y[k])),
      },
      emphasis: { focus: several ? "series" : "none" },
      markLine: errorBars(chart, each, paint, i, flat),
    }));
    return {
      animation: false,
      backgroundColor: "transparent",
      textStyle: { fontFamily: getComputedStyle(document.body).fontFamily.replaceAll('"', "'") },
      aria: { enabled: true },
      grid: { left: 8, right: flat ? 56 : 22, top: 18, bottom: chart.legend ? 44 : 12, outerBoundsMode: "same" },
      legend: { show: chart.legend, type: "scroll", bottom: 0, itemGap: 18, itemWidth: flat ? 12 : 26, itemHeight: 11, textStyle: { color: paint.ink, fontSize: 12.5 }, pageTextStyle: { color: paint.soft } },
      tooltip: tooltip(chart, paint),
      xAxis: flat ? values : places,
      yAxis: flat ? places : values,
      series,
    };
  };

  // Saving: a chart is drawn once more, off the page, at a size of its own and on a solid ground.
  const saved = (name, blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  };
  const redrawn = (chart, renderer, use) => {
    const place = renderer === "svg" ? null : document.createElement("div");
    const copy = echarts.init(place, null, { renderer, ssr: place === null, width: 900, height: 520 });
    const title = { text: chart.title, left: "center", top: 6, textStyle: { color: colour("--ink"), fontSize: 16 } };
    const option = optionOf(chart);
    copy.setOption({ ...option, title, grid: { ...option.grid, top: 48 }, backgroundColor: colour("--card") });
    try { return use(copy); } finally { copy.dispose(); }
  };
  const bytes = (url) => Uint8Array.from(atob(url.split(",")[1]), (letter) => letter.charCodeAt(0));
  const save = {
    csv: (chart) => new Blob([chart.csv], { type: "text/csv" }),
    svg: (chart) => redrawn(chart, "svg", (copy) => new Blob([copy.renderToSVGString()], { type: "image/svg+xml" })),
    png: (chart) => redrawn(chart, "canvas",
      (copy) => new Blob([bytes(copy.getDataURL({ type: "png", pixelRatio: 2 }))], { type: "image/png" })),
  };

  const draw = () => charts.forEach((chart) => drawn[chart.name].setOption(optionOf(chart), true));

  follow();
  charts.forEach((chart) => {
    const figure = document.querySelector(`[data-chart="${chart.name}"]`);
    const plot = figure.querySelector(".plot");
    drawn[chart.name] = echarts.init(plot, null, { renderer: "svg" });
    new ResizeObserver(() => drawn[chart.name].resize()).observe(plot);
    figure.querySelectorAll("[data-save]").forEach((button) =>
      button.addEventListener("click", () => saved(`${chart.name}.${button.dataset.save}`, save[button.dataset.save](chart))));
  });
  draw();

  document.getElementById("theme").addEventListener("click", () => {
    const name = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("adadp-theme", name); } catch { /* a browser that remembers nothing */ }
    setTheme(name);
    draw();
  });
  system.addEventListener("change", () => { follow(); draw(); });
  window.addEventListener("beforeprint", () => { setTheme("light"); draw(); });
  window.addEventListener("afterprint", () => { follow(); draw(); });

  // A command is broken between its words, and within one only where it is longer than the line.
  document.querySelectorAll(".command pre, td.shell").forEach((text) => {
    const words = text.textContent.split(/(\s+)/).map((word) => {
      if (!word.trim()) return word;
      const whole = document.createElement("span");
      whole.textContent = word;
      return whole;
    });
    text.replaceChildren(...words);
  });

  document.querySelectorAll(".copy").forEach((button) =>
    button.addEventListener("click", () => {
      const text = button.parentElement.querySelector("pre");
      getSelection().selectAllChildren(text);
      document.execCommand("copy");
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    }));
})();
