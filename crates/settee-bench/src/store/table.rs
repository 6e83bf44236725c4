//! Rows of the table, made of the engines' runs.

use super::bench::EngineRuns;
use super::runs::{EngineId, Run};
use crate::io::row::{IoRow, Series};
use crate::report::Bound;

/// The store's row, compared with the best of the peers, then a row for each peer. `weight` is the number of
/// the row's units per operation.
pub(super) fn table(
    name: &str,
    unit: &'static str,
    weight: impl Fn(&Run) -> f64,
    all_runs: &[EngineRuns],
    aim: Option<Bound>,
    note: impl Fn(&EngineRuns) -> String,
) -> Vec<IoRow> {
    let series: Vec<Series> = all_runs.iter().map(|engine_runs| engine_runs.series(&weight)).collect();
    let rate = |series: &Series| series.median(|window| Some(window.rate()));
    let peers = all_runs
        .iter()
        .zip(&series)
        .filter(|(engine_runs, _)| matches!(engine_runs.engine_id, EngineId::Peer(_)));
    let measured = peers.filter_map(|(engine_runs, series)| Some((engine_runs, series, rate(series)?)));
    let best = measured.max_by(|one, other| one.2.total_cmp(&other.2));
    let mut rows = Vec::new();
    for (engine_runs, series) in all_runs.iter().zip(&series) {
        let is_ours = engine_runs.engine_id == EngineId::Ours;
        let name = if is_ours { name.to_owned() } else { format!("  {}", engine_runs.engine_id.name()) };
        if engine_runs.runs.is_empty() {
            let reason = engine_runs.failure.clone().unwrap_or_else(|| "not run".to_owned());
            rows.push(IoRow::missing(name, unit, reason));
            continue;
        }
        let mut row = IoRow::new(name, unit, series);
        if let (true, Some((peer, its_series, _))) = (is_ours, &best) {
            row = row.against(peer.engine_id.name(), series, Some(its_series));
        }
        if let (true, Some(aim)) = (is_ours, aim) {
            row = row.with_aim(aim);
        }
        let mut note = note(engine_runs);
        if let Some(reason) = &engine_runs.failure {
            note = format!("A ROUND FAILED: {reason}; {note}");
        }
        rows.push(if note.is_empty() { row } else { row.with_note(note) });
    }
    rows
}

/// A row of one figure, compared with `limit`.
pub(super) fn figure_row(
    name: String,
    unit: &'static str,
    figure: Option<f64>,
    limit: (&str, f64),
    aim: Option<Bound>,
) -> IoRow {
    let Some(figure) = figure else { return IoRow::missing(name, unit, "not measured") };
    let mut row = IoRow::missing(name, unit, "");
    row.note = None;
    row.rate = Some(figure);
    row.operations = 1;
    if limit.1 > 0.0 {
        row = row.with_ratio(limit.0, figure / limit.1);
    }
    match aim {
        Some(aim) => row.with_aim(aim),
        None => row,
    }
}

/// The engine's configuration and its own counters.
pub(super) fn setup(engine_runs: &EngineRuns) -> String {
    let Some(run) = engine_runs.runs.last() else { return String::new() };
    let report = &run.report;
    match report.engine.is_empty() {
        true => report.setup.clone(),
        false => format!("{}; {}", report.setup, report.engine),
    }
}
