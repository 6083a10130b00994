//! The machine that a report is from.

/// Processors, memory, and the load before the bench began.
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown processor".into());
    let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
    format!("machine: {cores} cores of {cpu}, memory {memory}; {}", load())
}

/// The load of the last minute.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("load {}", text.split_ascii_whitespace().next().unwrap_or("unknown"))
}

fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}
