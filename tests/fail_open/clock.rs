//! The wall clock jumps: Envoy's, the hub's, both.
//!
//! Both run with `tests/support/clock.c` before the system's library, which adds to the wall clock what a file says. It is
//! compiled by the compiler that Rust links with.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::load::Load;
use crate::world::{COMES_BACK, STALE_AFTER, World};

const HOUR: i64 = 3_600;
const YEARS: i64 = 30 * 365 * 24 * HOUR;

/// The clocks of the two programs.
struct Clocks(PathBuf);

// === impl Clocks ===

impl Clocks {
    fn new() -> Clocks {
        let folder = std::env::temp_dir().join(format!("warmroute-clocks-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/clock.c");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let built = Command::new(compiler)
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .arg(folder.join("clock.so"))
            .arg(source)
            .status();
        assert!(built.unwrap().success(), "the C compiler that Rust links with is needed");
        Clocks(folder)
    }

    /// The program with a clock of this name.
    fn of(&self, name: &str, program: &Path) -> PathBuf {
        self.set(name, 0);
        let script = self.0.join(name);
        let text = format!(
            "#!/bin/sh\nLD_PRELOAD='{}' WARMROUTE_CLOCK='{}' exec '{}' \"$@\"\n",
            self.0.join("clock.so").display(),
            self.file(name).display(),
            program.display()
        );
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        script
    }

    /// Moves that clock by so many seconds from what it is.
    fn set(&self, name: &str, seconds: i64) {
        use std::io::Write;
        // Written in place: the file is mapped.
        let file = fs::OpenOptions::new().create(true).write(true).truncate(false).open(self.file(name));
        file.unwrap().write_all(&(seconds * 1_000_000_000).to_ne_bytes()).unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.offset"))
    }
}

impl Drop for Clocks {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_jump() {
    let clocks = Clocks::new();
    let world = World::start(|options| {
        options.programs.envoy = clocks.of("envoy", &options.programs.envoy);
        options.programs.hub = clocks.of("hub", &options.programs.hub);
    })
    .await;
    let load = Load::start(&world.stack.envoy_url());
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    for (envoy, hub) in
        [(HOUR, 0), (-HOUR, 0), (0, HOUR), (0, -HOUR), (-YEARS, -YEARS), (YEARS, YEARS), (YEARS, -YEARS), (0, 0)]
    {
        clocks.set("envoy", envoy);
        clocks.set("hub", hub);
        load.goes_on(STALE_AFTER + Duration::from_millis(500)).await;
        // What the hub knows is as old as it is, whatever its clock says, and after a jump all is told anew: only an Envoy that is
        // ahead takes it for older.
        if envoy <= hub {
            load.sees("PREFIX_MATCH", COMES_BACK).await;
        }
        eprintln!("Envoy {envoy} s, hub {hub} s: {:?}", load.tally().decisions);
    }
    let tally = load.stop().await;
    // Where all of a tenant's blocks are too old, nothing is known of it.
    world.is_unharmed(&tally, &["NO_HINT/stale?", "NO_HINT/catching_up?", "NO_HINT/cold?", "UNKNOWN_TENANT?"]).await;
}
