//! What the input headers and the tenant's source say.

use super::explicit::Explicit;
use super::head::Ambiguous;
use super::served::{Served, serving};
use super::{KnownAdapters, LookupRequest, PromptSource, RequestHead, names};
use crate::config::{BodyApi, FilterConfig, RESERVED_TENANT, TenantFrom, TenantSource};
use crate::observation::Scope;
use crate::routing::reason::Detail;

/// What a request's headers and its path say, kept until its body is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderInputs {
    pub(super) tenant_id: Option<String>,
    pub(super) model_id: Option<String>,
    pub(super) hash_scheme: Option<String>,
    pub(super) adapter_id: Option<String>,
    pub(super) slo_ttft_ms: Option<u32>,
    pub(super) explicit: Option<Explicit>,
    /// What the body's fields mean.
    pub(super) api: BodyApi,
    /// The first fault found in them; no body can repair it.
    pub(super) fault: Option<Detail>,
}

/// What a body may add to the scope; headers come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ScopeParts {
    pub hash_scheme: Option<String>,
    pub adapter_id: Option<String>,
}

// === impl HeaderInputs ===

impl HeaderInputs {
    /// The model, or the adapter in its place, that the headers name.
    pub fn model_id(&self) -> Option<&str> {
        self.model_id.as_deref()
    }

    pub(super) fn read(head: &RequestHead, tenant_property: Option<&str>, config: &FilterConfig) -> HeaderInputs {
        let mut inputs =
            HeaderInputs { tenant_id: tenant(head, tenant_property, &config.tenant), ..Default::default() };
        if head.has_inputs()
            && let Err(fault) = inputs.read_inputs(head, config)
        {
            inputs.fault = Some(fault);
        }
        inputs
    }

    fn read_inputs(&mut self, head: &RequestHead, config: &FilterConfig) -> Result<(), Detail> {
        let enabled = config.requests.input_headers;
        let get = |name| if enabled.enabled(name) { head.single(name) } else { Ok(None) };
        // An SLO only shades the score: a malformed one is as good as none.
        self.slo_ttft_ms = get(names::SLO_TTFT_MS).ok().flatten().and_then(|ms| ms.parse().ok());
        let text = |name| get(name).map(|value| value.map(str::to_owned)).map_err(|Ambiguous| Detail::WrongType);
        self.model_id = text(names::MODEL_ID)?;
        self.hash_scheme = text(names::HASH_SCHEME)?;
        self.adapter_id = text(names::ADAPTER_ID)?;
        self.explicit = Explicit::from_headers(|name| get(name).map_err(|Ambiguous| Detail::MalformedChain))?;
        Ok(())
    }

    /// Whether the body plays no part: keys, or a fault in them, and the model are in the headers.
    pub(super) fn decide_alone(&self) -> bool {
        self.model_id.is_some() && (self.explicit.is_some() || self.fault.is_some())
    }

    /// Refuses what no body could repair.
    pub(super) fn check(&self, config: &FilterConfig, known: &mut dyn KnownAdapters) -> Result<(), Detail> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.tenant_id.is_none() {
            return Err(Detail::NoTenant);
        }
        match &self.model_id {
            Some(model_id) => self.serving(model_id, config, known).map(drop),
            None => Ok(()),
        }
    }

    /// The request that the headers make on their own.
    pub(super) fn lookup_request(
        &self,
        config: &FilterConfig,
        known: &mut dyn KnownAdapters,
    ) -> Result<LookupRequest, Detail> {
        self.check(config, known)?;
        let served = self.serving(self.model_id.as_ref().ok_or(Detail::NoModel)?, config, known)?;
        let explicit = self.explicit.as_ref().ok_or(Detail::NoPrompt)?;
        let prompt = explicit.prompt(served.model, PromptSource::Absent)?.cut(config.limits.max_match_tokens);
        let scope = self.scope(served, ScopeParts::default())?;
        Ok(LookupRequest { scope, prompt, block_size: served.model.block_size, slo_ttft_ms: self.slo_ttft_ms })
    }

    /// What serves the model or adapter of this name.
    pub(super) fn serving<'a>(
        &self,
        name: &'a str,
        config: &'a FilterConfig,
        known: &mut dyn KnownAdapters,
    ) -> Result<Served<'a>, Detail> {
        serving(name, self.tenant_id.as_deref(), config, known)
    }

    /// The scope of a request for `served`. An adapter that is given as such counts before one that is named in place of
    /// the model.
    pub(super) fn scope(&self, served: Served<'_>, body: ScopeParts) -> Result<Scope, Detail> {
        let Served { model, adapter_id: named } = served;
        let adapter_id = self.adapter_id.clone().or(body.adapter_id);
        Ok(Scope {
            tenant_id: self.tenant_id.clone().ok_or(Detail::NoTenant)?,
            model_id: model.model_id.clone(),
            hash_scheme: self.hash_scheme.clone().or(body.hash_scheme).unwrap_or_else(|| model.hash_scheme.clone()),
            adapter_id: adapter_id.or_else(|| named.map(str::to_owned)).unwrap_or_default(),
        })
    }
}

/// The tenant, or `None` where there is none to be sure of: the contract's own one, or a header given twice.
fn tenant(head: &RequestHead, property: Option<&str>, source: &TenantSource) -> Option<String> {
    let named = match &source.from {
        TenantFrom::Nowhere => None,
        TenantFrom::Header(name) => head.single(name).ok()?,
        TenantFrom::Property(_) => property.filter(|tenant| !tenant.is_empty()),
    };
    let tenant = named.or(source.default.as_deref())?;
    (tenant != RESERVED_TENANT).then(|| tenant.to_owned())
}
