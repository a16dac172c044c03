// What XLA calls: products and attention, in float32 and bfloat16 (as its bits).

#include "attention.h"
#include "product.h"

namespace ffi = xla::ffi;

#define SPECJAX_PRODUCT(name, type)                                 \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, specjax::Product<type>,       \
                                ffi::Ffi::Bind()                    \
                                    .Ctx<ffi::ThreadPool>()         \
                                    .Arg<ffi::AnyBuffer>() /* x */  \
                                    .RemainingArgs() /* weights */  \
                                    .RemainingRets())

#define SPECJAX_ATTENTION(name, type)                                       \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, specjax::Attention<type>,             \
                                ffi::Ffi::Bind()                            \
                                    .Ctx<ffi::ThreadPool>()                 \
                                    .Arg<ffi::AnyBuffer>() /* q */          \
                                    .Arg<ffi::AnyBuffer>() /* keys */       \
                                    .Arg<ffi::AnyBuffer>() /* values */     \
                                    .Arg<ffi::AnyBuffer>() /* layer */      \
                                    .Arg<ffi::AnyBuffer>() /* positions */  \
                                    .Arg<ffi::AnyBuffer>() /* window */     \
                                    .Ret<ffi::AnyBuffer>()                  \
                                    .Attr<float>("scale")                   \
                                    .Attr<float>("softcap"))

SPECJAX_PRODUCT(specjax_product_float32, float);
SPECJAX_PRODUCT(specjax_product_bfloat16, uint16_t);
SPECJAX_ATTENTION(specjax_attention_float32, float);
SPECJAX_ATTENTION(specjax_attention_bfloat16, uint16_t);
