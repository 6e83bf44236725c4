//! The catalogue of databases that no server has open, or of a copy of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use settee_io::Env;
use settee_store::{CheckEvent, Flags, LogOptions, Salvage, StoreOptions};

use super::catalogue_entry::{CatalogueEntry, tombstone_number};
use crate::Result;

/// The options of a store that no server has open: buffered, with the limits of `log`.
pub(super) fn plain_options(log: LogOptions) -> StoreOptions {
    StoreOptions { log: LogOptions { direct: false, ..log }, ..StoreOptions::DEFAULT }
}

/// Reads the readable part of a catalogue that isn't open: its entries, and the numbers of deleted databases.
pub(super) async fn read_catalogue(
    env: &Env,
    place: &Path,
    log: LogOptions,
) -> Result<(BTreeMap<String, CatalogueEntry>, BTreeSet<u64>)> {
    let mut report = |_: CheckEvent| {};
    let mut salvage = Salvage::begin(env, place, &plain_options(log), &mut report).await?;
    read_entries(&mut salvage).await
}

/// The entries of a catalogue, and the numbers of deleted databases.
pub(super) async fn read_entries(
    salvage: &mut Salvage<'_>,
) -> Result<(BTreeMap<String, CatalogueEntry>, BTreeSet<u64>)> {
    let (mut names, mut deleted) = (BTreeMap::new(), BTreeSet::new());
    while let Some(records) = salvage.next().await? {
        for record in records {
            let is_gone = record.flags.has(Flags::TOMBSTONE);
            if let Some(number) = tombstone_number(&record.key) {
                if is_gone {
                    deleted.remove(&number)
                } else {
                    deleted.insert(number)
                };
                continue;
            }
            let Ok(name) = String::from_utf8(record.key) else { continue };
            if is_gone {
                names.remove(&name);
            } else if let Ok(entry) = CatalogueEntry::decode(&record.meta) {
                names.insert(name, entry);
            }
        }
    }
    Ok((names, deleted))
}
