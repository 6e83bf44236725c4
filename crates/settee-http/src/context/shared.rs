//! The state that all requests of a server share.
//!
//! A configuration change over HTTP replaces the [`Server`] that requests see as a whole. A request uses one
//! `Server` from its beginning to its end. What outlives such changes is [`Shared`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::{ArcSwap, Guard};
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::HeaderValue;
use settee_doc::Databases;
use settee_view::Views;
use tokio::sync::watch;

use crate::auth::cors::Cors;
use crate::auth::sign_in::SignIn;
use crate::auth::{Admin, Auth};
use crate::body::{BodyMemory, EvictingSet, UNAUTHENTICATED_BODIES_MAX};
use crate::error::ApiError;
use crate::identity;
use crate::javascript::{Contexts, WriteFunctions};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::response::memory::ResponseMemory;
use crate::settings::{ConfigStore, Derived, Facts, Maintenance, ServerOptions};
use crate::uuids::{Uuids, new_uuid};

/// Completes when the server begins to shut down.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    stopping.wait_for(|stopping| *stopping).await.ok();
}

/// State that outlives configuration changes.
pub(crate) struct Shared {
    current: ArcSwap<Server>,
    pub(crate) config: ConfigStore,
    pub(crate) response_memory: Arc<ResponseMemory>,
    /// Requests in progress, from the end of their heads to the head of their responses.
    in_flight: AtomicUsize,
    pub(crate) access_log: bool,
    /// Set by a 507, cleared by a 201.
    pub(crate) is_disk_full: AtomicBool,
    /// Counter of requests, which starts at a random number. Request ids derive from it.
    next_id: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        databases: Arc<Databases>,
        options: ServerOptions,
        address: Option<SocketAddr>,
        stopping: watch::Receiver<bool>,
    ) -> Shared {
        let uuid = if options.uuid.is_empty() { new_uuid() } else { options.uuid };
        let admin = options.admin.as_ref();
        let facts = Facts { admin: admin.map(Admin::name), uuid: &uuid, address };
        let body_memory = Arc::new(BodyMemory::new(&options.limits));
        let response_memory = ResponseMemory::new(&options.limits);
        let (config, derived) = ConfigStore::open(options.config_file, options.limits, &facts);
        let Derived { limits, maintenance, uuids, plus_is_space, partition_bytes_max, sign_in, cors } =
            derived;
        databases.set_partition_bytes_max(partition_bytes_max);
        let contexts = Arc::new(Contexts::default());
        databases.set_design_functions(Arc::new(WriteFunctions::new(contexts.clone(), admin)));
        let server = Server {
            metrics: Arc::new(Metrics::new(databases.clone(), &limits, options.dropped_log_lines)),
            views: Arc::new(Views::new(&databases, options.views)),
            contexts,
            databases,
            document_options: document_options(&limits),
            auth: Arc::new(Auth::new(admin, limits.session_timeout_s)),
            body_memory,
            unauthenticated: Arc::new(EvictingSet::new(UNAUTHENTICATED_BODIES_MAX)),
            limits,
            maintenance,
            plus_is_space,
            sign_in,
            cors,
            uuids: Arc::new(Uuids::new(uuids)),
            welcome: identity::welcome_text(&uuid),
            stopping,
        };
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).expect("the system provides randomness");
        Shared {
            current: ArcSwap::from_pointee(server),
            config,
            response_memory,
            in_flight: AtomicUsize::new(0),
            access_log: options.access_log,
            is_disk_full: AtomicBool::new(false),
            next_id: AtomicU64::new(u64::from_ne_bytes(seed)),
        }
    }

    /// The server with the current configuration.
    pub(crate) fn current(&self) -> Arc<Server> {
        self.current.load_full()
    }

    /// As [`Shared::current`], without counting a reference in most cases. The guard is held for one request.
    pub(crate) fn load_current(&self) -> Guard<Arc<Server>> {
        self.current.load()
    }

    /// Applies a configuration change to all requests that begin from now on. Changes are serialized: the
    /// caller holds `ConfigStore::changing`.
    pub(crate) fn apply(&self, derived: Derived) {
        let Derived { limits, maintenance, uuids, plus_is_space, partition_bytes_max, sign_in, cors } =
            derived;
        let before = self.current();
        before.uuids.choose(uuids);
        before.databases.set_partition_bytes_max(partition_bytes_max);
        before.auth.set_timeout(limits.session_timeout_s);
        let document_options = document_options(&limits);
        let parts = before.renewed();
        let renewed = Server { limits, maintenance, plus_is_space, document_options, sign_in, cors, ..parts };
        self.current.store(Arc::new(renewed));
    }

    /// Sets or clears `is_disk_full` by the status of a response.
    pub(crate) fn record_disk_full(&self, status: StatusCode) {
        match status {
            StatusCode::INSUFFICIENT_STORAGE => self.is_disk_full.store(true, Ordering::Relaxed),
            StatusCode::CREATED if self.is_disk_full.load(Ordering::Relaxed) => {
                self.is_disk_full.store(false, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Counts a request as in progress until the returned guard is dropped.
    ///
    /// # Errors
    /// 503 if `requests_in_flight_max` requests are in progress.
    pub(crate) fn begin_request(&self, server: &Server) -> Result<InFlight<'_>, ApiError> {
        let begun = InFlight(&self.in_flight);
        let others = self.in_flight.fetch_add(1, Ordering::Relaxed);
        match others < server.limits.requests_in_flight_max {
            true => Ok(begun),
            false => {
                server.metrics.counters.count_refused();
                Err(ApiError::overloaded())
            }
        }
    }

    /// Returns 10 hex digits that no earlier request of this process had.
    pub(crate) fn request_id(&self) -> HeaderValue {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // Multiplication by an odd factor permutes the numbers, so ids stay unique.
        let count = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut number = count.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0xff_ffff_ffff;
        let mut text = [0; 10];
        for digit in &mut text {
            *digit = DIGITS[(number & 15) as usize];
            number >>= 4;
        }
        HeaderValue::from_bytes(&text).expect("digits are a header's value")
    }
}

/// Counts a request in progress until it is dropped.
pub(crate) struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn document_options(limits: &Limits) -> settee_doc::Options {
    settee_doc::Options {
        document_bytes_max: limits.document_bytes_max,
        attachment_bytes_max: limits.attachment_bytes_max,
    }
}

/// State that all requests share.
pub(crate) struct Server {
    pub(crate) databases: Arc<Databases>,
    pub(crate) views: Arc<Views>,
    /// The JavaScript contexts of design functions.
    pub(crate) contexts: Arc<Contexts>,
    pub(crate) limits: Limits,
    pub(crate) maintenance: Maintenance,
    /// Whether `+` in a path decodes to a space.
    pub(crate) plus_is_space: bool,
    pub(crate) sign_in: SignIn,
    pub(crate) cors: Option<Cors>,
    pub(crate) body_memory: Arc<BodyMemory>,
    /// Unauthenticated requests that wait for their bodies.
    pub(crate) unauthenticated: Arc<EvictingSet>,
    pub(crate) document_options: settee_doc::Options,
    pub(crate) auth: Arc<Auth>,
    pub(crate) uuids: Arc<Uuids>,
    pub(crate) welcome: Bytes,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stopping: watch::Receiver<bool>,
}

impl Server {
    /// A copy that shares all parts.
    fn renewed(&self) -> Server {
        Server {
            databases: self.databases.clone(),
            views: self.views.clone(),
            contexts: self.contexts.clone(),
            limits: self.limits.clone(),
            maintenance: self.maintenance,
            plus_is_space: self.plus_is_space,
            sign_in: self.sign_in.clone(),
            cors: self.cors.clone(),
            body_memory: self.body_memory.clone(),
            unauthenticated: self.unauthenticated.clone(),
            document_options: self.document_options,
            auth: self.auth.clone(),
            uuids: self.uuids.clone(),
            welcome: self.welcome.clone(),
            metrics: self.metrics.clone(),
            stopping: self.stopping.clone(),
        }
    }
}
