//! Rows of attachments, alternating with the bare server, which reads or sends as many bytes.

use super::bench::{Bench, against_bare, directory, generators, row};
use super::clients::{AttachmentGetter, AttachmentPutter, IdPath, NumberRange};
use super::config::scaled;
use super::plan::{ATTACHMENT_BYTES, Plan};
use crate::documents::{Generator, attachment};
use crate::drive::{Client, Until};
use crate::error::{Error, Result};
use crate::limits::BareClient;
use crate::report::Row;

/// Maximum number of attachments that a row puts, which bounds the disk space.
const PUT_COUNT_MAX: u64 = 2_000;

/// Number of attachments that readers choose from.
const GET_COUNT: u64 = 64;

/// Minimum of both counts at a small scale.
const SCALED_COUNT_MIN: u64 = 16;

/// Number of attachments that are read back after a row has put them.
const READ_BACK_COUNT: u64 = 3;

/// Maximum number of attachments that a row puts at a scale.
pub(super) fn put_count(scale: f64) -> u64 {
    scaled(scale, PUT_COUNT_MAX, SCALED_COUNT_MIN)
}

impl Bench<'_> {
    fn putters(&self, database: &str, numbers: &NumberRange, clients: u64) -> Vec<AttachmentPutter> {
        let putter = |_| AttachmentPutter {
            target: IdPath::new(&directory(database)),
            numbers: numbers.clone(),
            body: &[],
            bytes: ATTACHMENT_BYTES,
        };
        (0..clients).map(putter).collect()
    }

    fn attachment_getters(&self, database: &str, clients: u64, count: u64) -> Vec<AttachmentGetter> {
        let getter = |generator| AttachmentGetter {
            target: IdPath::new(&directory(database)),
            count,
            bytes: ATTACHMENT_BYTES,
            generator,
            number: 0,
        };
        generators(clients).map(getter).collect()
    }

    pub(super) async fn attachment_put(&mut self, plan: &Plan, clients: u64) -> Result<Row> {
        let database = self.create().await?;
        let numbers = NumberRange::up_to(put_count(self.config.scale));
        let putters = self.putters(&database, &numbers, clients);
        let bare_clients = vec![BareClient::put(attachment(0, ATTACHMENT_BYTES).to_vec()); clients as usize];
        let (outcome, bare) = self.drive_both(plan.name, putters, bare_clients).await?;
        self.check_count(plan.name, &database, numbers.taken()).await?;
        self.read_back(plan, &database, numbers.taken()).await?;
        let row = row(plan, "requests", &outcome);
        let limit_name = format!("bare server, which reads {ATTACHMENT_BYTES} bytes and lets them go");
        Ok(against_bare(row, bare.as_ref(), limit_name).judged(plan.goals))
    }

    /// Gets some of the attachments that were put and compares their content.
    async fn read_back(&mut self, plan: &Plan, database: &str, count: u64) -> Result<()> {
        let mut random = Generator::new(0);
        let mut getters = self.attachment_getters(database, 1, count);
        for _ in 0..READ_BACK_COUNT {
            let getter = &mut getters[0];
            getter.generator = Generator::new(random.below(u64::MAX));
            let mut request = Vec::new();
            getter.render(&self.config.target.server, &mut request);
            let mut connection = crate::http::Connection::open(&self.config.target.server).await?;
            let answer = connection.exchange(&request).await?;
            getter.check(answer).map_err(|reason| Error::wrong(plan.name, reason))?;
        }
        Ok(())
    }

    pub(super) async fn attachment_get(&mut self, plan: &Plan, clients: u64) -> Result<Row> {
        let database = self.create().await?;
        let count = self.scaled(GET_COUNT, SCALED_COUNT_MIN);
        let putters = self.putters(&database, &NumberRange::up_to(count), 1);
        self.drive_target(plan.name, putters, Until::Done).await?;
        self.settle().await;
        let getters = self.attachment_getters(&database, clients, count);
        let bare_clients = vec![BareClient::get(ATTACHMENT_BYTES as u64); clients as usize];
        let (outcome, bare) = self.drive_both(plan.name, getters, bare_clients).await?;
        let limit_name = format!("bare server, {ATTACHMENT_BYTES} bytes");
        Ok(against_bare(row(plan, "requests", &outcome), bare.as_ref(), limit_name).judged(plan.goals))
    }
}
