//! How the figures are shown.

use std::fs;

/// What they were measured on.
pub fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(": ").map(|(_, v)| v.trim()))
        .unwrap_or("unknown");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.split_whitespace().nth(1).and_then(|v| v.parse::<u64>().ok()).unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "Machine: {cores} cores ({model}), {} GiB, Linux {}. Cluster, product, servers and load generator share it.\n",
        kib >> 20,
        kernel.trim()
    )
}

/// A Markdown table.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut out = line(head.iter().map(|h| (*h).to_owned()).collect());
    out += &line(head.iter().map(|_| "---".to_owned()).collect());
    for row in rows {
        out += &line(row.clone());
    }
    out
}

/// The value in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Writes a page of `docs/`: `benchmarks` or `scale`.
pub fn write(text: &str, page: &str) {
    let path = format!("{}/docs/{page}.md", env!("CARGO_MANIFEST_DIR"));
    let (title, command) = match page {
        "scale" => ("Scale", "scripts/bench scale"),
        _ => ("Benchmarks", "make bench"),
    };
    let head = format!(
        "# {title}\n\nWritten by `AWAKEN_BENCH_WRITE=1 {command}`; every figure is from that one run.\n"
    );
    fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/docs")).unwrap();
    fs::write(path, format!("{head}\n{text}")).unwrap();
}
