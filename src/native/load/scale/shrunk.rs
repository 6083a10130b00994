//! Part `shrunk`: most replicas leave at once, and those that stay come to hold as much again.

use std::time::{Duration, Instant};

use super::ScaleError;
use super::options::ScaleOptions;
use super::site::{Figures, Site};
use super::verdict::Verdicts;

/// What is gone must be given back within this time: the sweep's minute, and a little for the hub to notice.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(70);

/// Runs the part.
///
/// # Errors
/// When a program does not answer, or the index does not follow.
pub async fn run(site: &Site, options: &ScaleOptions, verdicts: &mut Verdicts) -> Result<(), ScaleError> {
    let (replicas, left) = (site.pool.len(), options.left.min(site.pool.len()));
    println!("\n## From {replicas} replicas to {left}\n");
    println!("| | pairs held | pairs in the index | index MB | Envoy RSS MB | after s |\n|---|---|---|---|---|---|");
    let before = site.figures().await?;
    print_row(site, "before", &before, Duration::ZERO);
    let start = Instant::now();
    site.pool.leave(left..replicas);
    site.all_known(GIVEN_BACK_WITHIN).await?;
    let known = start.elapsed();
    let at_once = site.figures().await?;
    print_row(site, "pairs gone", &at_once, known);
    tokio::time::sleep(GIVEN_BACK_WITHIN.saturating_sub(known)).await;
    let swept = site.figures().await?;
    print_row(site, "swept", &swept, start.elapsed());

    let again = before.pairs as usize / left.max(1);
    site.pool.fill(0..left, again).await?;
    site.all_known(options.load_limit()).await?;
    let filled = site.figures().await?;
    print_row(site, "filled again", &filled, start.elapsed());
    println!();

    let share = left as f64 / replicas as f64;
    verdicts.at_most(
        "share of pairs left, of the replicas' share, once they left",
        1.1,
        swept.pairs / before.pairs / share,
    );
    if before.index_bytes > 0.0 {
        verdicts.at_most("the same of bytes", 1.5, swept.index_bytes / before.index_bytes / share);
        verdicts.at_most("bytes once filled again, of those before", 1.25, filled.index_bytes / before.index_bytes);
    }
    verdicts.none("blocks refused when filled again", (filled.refused - swept.refused) as usize);
    Ok(())
}

fn print_row(site: &Site, name: &str, figures: &Figures, after: Duration) {
    let megabytes = |bytes: f64| if bytes > 0.0 { format!("{:.1}", bytes / 1e6) } else { "-".to_owned() };
    println!(
        "| {name} | {} | {} | {} | {} | {:.1} |",
        site.pool.blocks(),
        figures.pairs,
        megabytes(figures.index_bytes),
        megabytes(figures.envoy.rss_bytes as f64),
        after.as_secs_f64()
    );
}
