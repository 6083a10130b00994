//! What the input headers and the tenant's source say.

use super::explicit::Explicit;
use super::head::Ambiguous;
use super::{LookupRequest, PromptSource, RequestHead, names};
use crate::config::{FilterConfig, ModelConfig, RESERVED_TENANT, TenantFrom, TenantSource};
use crate::observation::Scope;
use crate::routing::reason::Detail;

/// What a request's headers say, kept until its body is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderInputs {
    pub(super) tenant_id: Option<String>,
    pub(super) model_id: Option<String>,
    pub(super) hash_scheme: Option<String>,
    pub(super) adapter_id: Option<String>,
    pub(super) slo_ttft_ms: Option<u32>,
    pub(super) explicit: Option<Explicit>,
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
    /// The model that the headers name.
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
    pub(super) fn check(&self, config: &FilterConfig) -> Result<(), Detail> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.tenant_id.is_none() {
            return Err(Detail::NoTenant);
        }
        match &self.model_id {
            Some(model_id) if !config.models.contains_key(model_id) => Err(Detail::ModelNotConfigured),
            _ => Ok(()),
        }
    }

    /// The request that the headers make on their own.
    pub(super) fn lookup_request(&self, config: &FilterConfig) -> Result<LookupRequest, Detail> {
        self.check(config)?;
        let model = self.model_id.as_ref().and_then(|model_id| config.models.get(model_id)).ok_or(Detail::NoModel)?;
        let explicit = self.explicit.as_ref().ok_or(Detail::NoPrompt)?;
        let prompt = explicit.prompt(model, PromptSource::Absent)?;
        let scope = self.scope(model, ScopeParts::default())?;
        Ok(LookupRequest { scope, prompt, block_size: model.block_size, slo_ttft_ms: self.slo_ttft_ms })
    }

    /// The scope of a request for `model`.
    pub(super) fn scope(&self, model: &ModelConfig, body: ScopeParts) -> Result<Scope, Detail> {
        Ok(Scope {
            tenant_id: self.tenant_id.clone().ok_or(Detail::NoTenant)?,
            model_id: model.model_id.clone(),
            hash_scheme: self.hash_scheme.clone().or(body.hash_scheme).unwrap_or_else(|| model.hash_scheme.clone()),
            adapter_id: self.adapter_id.clone().or(body.adapter_id).unwrap_or_default(),
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
