//! A program that the stack runs: started, stopped and restarted by its process id, its output kept in a file.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child as Process, Command};

/// What a program that yields, or a thread, adds to its nice value.
pub const YIELDING: i32 = 10;

/// Lines of a program's output that an error message repeats.
const LINES_SHOWN: usize = 15;

/// A program with its arguments, running or not. Dropped, it is killed.
#[derive(Debug)]
pub struct Child {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    process: Option<Process>,
    yields: bool,
}

// === impl Child ===

impl Child {
    /// A program that is not running yet. Its standard output and error are appended to `<name>.log` in `folder`.
    pub fn new(name: impl Into<String>, program: &Path, arguments: Vec<String>, folder: &Path) -> Child {
        let name = name.into();
        let log = folder.join(format!("{name}.log"));
        Child { name, program: program.to_path_buf(), arguments, log, process: None, yields: false }
    }

    /// The same, giving way to what runs at the usual priority.
    #[must_use]
    pub fn yielding(self) -> Child {
        Child { yields: true, ..self }
    }

    /// The name, as in the log file's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().and_then(Process::id)
    }

    /// Everything it has written so far, over all its runs.
    pub fn log_text(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The last lines of what it has written.
    pub fn log_tail(&self) -> String {
        let text = self.log_text();
        let lines: Vec<&str> = text.lines().collect();
        let shown = lines.get(lines.len().saturating_sub(LINES_SHOWN)..).unwrap_or_default();
        shown.join("\n")
    }

    /// Starts it, unless it runs.
    ///
    /// # Errors
    /// When the program cannot be run or its log cannot be written.
    pub fn start(&mut self) -> io::Result<()> {
        if self.has_exited() {
            let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
            let mut command = match self.yields {
                true => Command::new("nice"),
                false => Command::new(&self.program),
            };
            if self.yields {
                // It becomes the program: the process id is the program's.
                command.args(["-n", &YIELDING.to_string()]).arg(&self.program);
            }
            let process = command
                .args(&self.arguments)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .kill_on_drop(true)
                .spawn()?;
            self.process = Some(process);
        }
        Ok(())
    }

    /// Kills it and waits until it is gone. Without effect if it does not run.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn kill(&mut self) -> io::Result<()> {
        match self.process.take() {
            Some(mut process) => process.kill().await,
            None => Ok(()),
        }
    }

    /// Kills it and starts it again with the same arguments.
    ///
    /// # Errors
    /// As for [`Child::kill`] and [`Child::start`].
    pub async fn restart(&mut self) -> io::Result<()> {
        self.kill().await?;
        self.start()
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    ///
    /// # Errors
    /// When it does not run or the system refuses.
    pub async fn terminate(&mut self) -> io::Result<()> {
        self.signal(Signal::TERM)?;
        if let Some(mut process) = self.process.take() {
            process.wait().await?;
        }
        Ok(())
    }

    /// Holds it still (SIGSTOP): its connections stay open and say nothing.
    ///
    /// # Errors
    /// When it does not run or the system refuses.
    pub fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it run on after [`Child::stop`].
    ///
    /// # Errors
    /// When it does not run or the system refuses.
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Whether it has ended, or was never started.
    pub fn has_exited(&mut self) -> bool {
        match &mut self.process {
            Some(process) => !matches!(process.try_wait(), Ok(None)),
            None => true,
        }
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = self.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{} does not run", self.name)))?;
        Ok(kill_process(pid, signal)?)
    }
}
