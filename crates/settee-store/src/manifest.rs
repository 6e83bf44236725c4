//! The store's section of the log's manifest: the tree, and what a root of it must know.
//!
//! The log's manifest lists the segments ([`settee_log::Manifest`]); this section is replaced together with
//! the list. Bytes: `docs/format.md`.

use std::fmt::Write;
use std::path::Path;

use settee_io::{Damage, Env};
use settee_log::{MANIFEST_FILE, Manifest};

use crate::error::StoreError;

/// The store's lines in the manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoreSection {
    /// Incarnation of the tree, which its roots name.
    pub incarnation: [u8; 16],
    /// Number in the name of the tree's file.
    pub tree: Option<u32>,
    /// `Seq` of the checkpoint that the files are as of. An older root of the tree doesn't know of segments
    /// that were listed or rewritten since.
    pub checkpoint: u64,
    /// The last record that was ever in the seq index.
    pub last_in_seq_index: u64,
}

pub(crate) fn tree_name(number: u32) -> String {
    format!("{number:010}.tree")
}

impl StoreSection {
    pub(crate) fn encode(&self) -> String {
        let mut text = String::from("incarnation ");
        let mut add = |part: std::fmt::Arguments<'_>| text.write_fmt(part).expect("a string takes all");
        self.incarnation.iter().for_each(|byte| add(format_args!("{byte:02x}")));
        add(format_args!("\ncheckpoint {}\nlast-listed {}\n", self.checkpoint, self.last_in_seq_index));
        self.tree.iter().for_each(|number| add(format_args!("tree {number}\n")));
        text
    }

    /// Decodes what [`StoreSection::encode`] wrote.
    pub(crate) fn decode(text: &str) -> Option<StoreSection> {
        let mut section = StoreSection::default();
        for line in text.lines() {
            let (name, value) = line.split_once(' ')?;
            match name {
                "incarnation" if value.len() == 32 && value.is_ascii() => {
                    for (index, byte) in section.incarnation.iter_mut().enumerate() {
                        *byte = u8::from_str_radix(&value[2 * index..2 * index + 2], 16).ok()?;
                    }
                }
                "checkpoint" => section.checkpoint = value.parse().ok()?,
                "last-listed" => section.last_in_seq_index = value.parse().ok()?,
                "tree" => section.tree = Some(value.parse().ok()?),
                _ => return None,
            }
        }
        Some(section)
    }

    /// The section of a store whose files are as of a later checkpoint.
    pub(crate) fn at(self, checkpoint: u64, last_in_seq_index: u64) -> StoreSection {
        let checkpoint = self.checkpoint.max(checkpoint);
        StoreSection { checkpoint, last_in_seq_index: self.last_in_seq_index.max(last_in_seq_index), ..self }
    }
}

/// A manifest, and the store's section of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoreManifest {
    pub log: Manifest,
    pub section: StoreSection,
}

impl StoreManifest {
    /// Whether the manifest names no more than the log's timelines, as after the restore of a store without a
    /// checkpoint.
    pub(crate) fn has_no_section(log: &Manifest) -> bool {
        log.user.is_empty() && log.listed_to == 0
    }

    /// Decodes the section of a manifest in `directory`.
    pub(crate) fn of(log: Manifest, directory: &Path) -> Result<StoreManifest, StoreError> {
        let section = StoreSection::decode(&log.user).ok_or_else(|| {
            let (path, what) = (directory.join(MANIFEST_FILE), "the store's section is invalid");
            StoreError::Damaged(Damage { path, offset: 0, what })
        })?;
        Ok(StoreManifest { log, section })
    }

    /// Reads a store's manifest; `None` if there is none.
    pub(crate) async fn read(env: &Env, directory: &Path) -> Result<Option<StoreManifest>, StoreError> {
        let log = match Manifest::read(env, directory).await {
            Err(settee_log::OpenError::Damaged(damage)) => return Err(StoreError::Damaged(damage)),
            Err(settee_log::OpenError::Io(error)) => return Err(error.into()),
            read => read?,
        };
        log.map(|log| StoreManifest::of(log, directory)).transpose()
    }
}
