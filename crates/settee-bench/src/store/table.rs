//! Rows of the table, made of the engines' runs.

use super::bench::EngineRuns;
use super::runs::{EngineId, Run};
use crate::report::{Bound, Row};
use crate::rounds::Series;

/// The store's row, compared with the best of the peers, then a row for each peer. `weight` is the number of
/// the row's units per operation.
pub(super) fn table(
    name: &str,
    unit: &'static str,
    weight: f64,
    all_runs: &[EngineRuns],
    aim: Option<Bound>,
    note: impl Fn(&EngineRuns) -> String,
) -> Vec<Row> {
    let of_peers = all_runs.iter().filter(|runs| matches!(runs.engine_id, EngineId::Peer(_)));
    let measured = of_peers.filter_map(|runs| Some((runs, runs.series(weight).rate()?)));
    let best = measured.max_by(|one, other| one.1.total_cmp(&other.1)).map(|(runs, _)| runs);
    let row = |runs: &EngineRuns| {
        let (is_ours, series) = (runs.engine_id == EngineId::Ours, runs.series(weight));
        let name = if is_ours { name.to_owned() } else { format!("  {}", runs.engine_id.name()) };
        if runs.runs.is_empty() {
            return Row::missing(name, unit, runs.failure.as_deref().unwrap_or("not run"));
        }
        let mut row = Row::new(name, unit, &series);
        if is_ours && (best.is_some() || aim.is_some()) {
            let peer = best.map(|best| best.series(weight));
            let name = best.map_or("the best peer", |best| best.engine_id.name());
            row = row.against(name, &series, peer.as_ref(), aim);
        }
        if let Some(reason) = &runs.failure {
            row = row.note(format!("A ROUND FAILED: {reason}"));
        }
        row.note(note(runs))
    };
    all_runs.iter().map(row).collect()
}

/// A row of one figure, compared with `limit`.
pub(super) fn figure_row(
    name: impl Into<String>,
    unit: &'static str,
    figure: Option<f64>,
    limit: (&str, f64),
    aim: Option<Bound>,
) -> Row {
    let Some(figure) = figure else { return Row::missing(name, unit, "not measured") };
    let ratio = (limit.1 > 0.0).then(|| figure / limit.1);
    Row::figure(name, unit, figure).compare(format!("× {}", limit.0), ratio, aim)
}

/// The ratio of one engine's rate to another's, which isn't empty.
pub(super) fn ratio_row(
    name: &str,
    unit: &'static str,
    ours: &Series,
    peer: (&str, &Series),
    aim: Bound,
) -> Row {
    Row::new(name, unit, ours).against(peer.0, ours, Some(peer.1), aim)
}

/// The engine's configuration and its own counters.
pub(super) fn setup(engine_runs: &EngineRuns) -> String {
    let Some(Run { report, .. }) = engine_runs.runs.last() else { return String::new() };
    [&*report.setup, &report.engine]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}
