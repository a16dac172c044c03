// What XLA calls: products, those of a gated MLP, attention, what it keeps and
// norms, in float32 and bfloat16 (as its bits); products of either with int8; the
// largest of rows and noise, in float32; rows of a table.

#include "attention.h"
#include "gated.h"
#include "largest.h"
#include "lookup.h"
#include "noise.h"
#include "norm.h"
#include "pack.h"
#include "product.h"

namespace ffi = xla::ffi;

#define SPECJAX_PRODUCT(name, run)                                  \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, specjax::run,                 \
                                ffi::Ffi::Bind()                    \
                                    .Ctx<ffi::ThreadPool>()         \
                                    .Arg<ffi::AnyBuffer>() /* x */  \
                                    .RemainingArgs() /* weights */  \
                                    .RemainingRets())

#define SPECJAX_GATED(name, type)                                  \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, specjax::Gated<type>,        \
                                ffi::Ffi::Bind()                   \
                                    .Ctx<ffi::ThreadPool>()        \
                                    .Arg<ffi::AnyBuffer>() /* x */ \
                                    .Arg<ffi::AnyBuffer>() /* gate */ \
                                    .Arg<ffi::AnyBuffer>() /* up */   \
                                    .Ret<ffi::AnyBuffer>()            \
                                    .Attr<int32_t>("activation"))

#define SPECJAX_GATED_INT8(name, type)                                    \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, specjax::GatedInt8<type>,           \
                                ffi::Ffi::Bind()                          \
                                    .Ctx<ffi::ThreadPool>()               \
                                    .Arg<ffi::AnyBuffer>() /* x */        \
                                    .Arg<ffi::AnyBuffer>() /* gate */     \
                                    .Arg<ffi::AnyBuffer>() /* its scale */ \
                                    .Arg<ffi::AnyBuffer>() /* up */       \
                                    .Arg<ffi::AnyBuffer>() /* its scale */ \
                                    .Ret<ffi::AnyBuffer>()                \
                                    .Attr<int32_t>("activation"))

#define SPECJAX_ATTENTION(name, type)                                       \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, specjax::Attention<type>,             \
                                ffi::Ffi::Bind()                            \
                                    .Ctx<ffi::ThreadPool>()                 \
                                    .Arg<ffi::AnyBuffer>() /* q */          \
                                    .Arg<ffi::AnyBuffer>() /* keys */       \
                                    .Arg<ffi::AnyBuffer>() /* values */     \
                                    .Arg<ffi::AnyBuffer>() /* layer */      \
                                    .Arg<ffi::AnyBuffer>() /* positions */  \
                                    .Arg<ffi::AnyBuffer>() /* slots */      \
                                    .Arg<ffi::AnyBuffer>() /* window */     \
                                    .Arg<ffi::AnyBuffer>() /* bias */       \
                                    .Ret<ffi::AnyBuffer>()                  \
                                    .Attr<float>("scale")                   \
                                    .Attr<float>("softcap"))

#define SPECJAX_NORM(name, type)                                    \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, specjax::Norm<type>,          \
                                ffi::Ffi::Bind()                    \
                                    .Arg<ffi::AnyBuffer>() /* x */  \
                                    .Arg<ffi::AnyBuffer>() /* weight */ \
                                    .Ret<ffi::AnyBuffer>()          \
                                    .Attr<float>("eps")             \
                                    .Attr<int32_t>("plus_one"))

#define SPECJAX_PACK(name, type)                                        \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, specjax::Pack<type>,              \
                                ffi::Ffi::Bind()                        \
                                    .Arg<ffi::AnyBuffer>() /* keys */   \
                                    .Arg<ffi::AnyBuffer>() /* values */ \
                                    .Ret<ffi::AnyBuffer>()              \
                                    .Ret<ffi::AnyBuffer>())

SPECJAX_PRODUCT(specjax_product_float32, Product<float>);
SPECJAX_PRODUCT(specjax_product_bfloat16, Product<uint16_t>);
SPECJAX_PRODUCT(specjax_int8_float32, ProductInt8<float>);
SPECJAX_PRODUCT(specjax_int8_bfloat16, ProductInt8<uint16_t>);
SPECJAX_GATED(specjax_gated_float32, float);
SPECJAX_GATED(specjax_gated_bfloat16, uint16_t);
SPECJAX_GATED_INT8(specjax_gated_int8_float32, float);
SPECJAX_GATED_INT8(specjax_gated_int8_bfloat16, uint16_t);
SPECJAX_ATTENTION(specjax_attention_float32, float);
SPECJAX_ATTENTION(specjax_attention_bfloat16, uint16_t);
SPECJAX_PACK(specjax_pack_float32, float);
SPECJAX_PACK(specjax_pack_bfloat16, uint16_t);
SPECJAX_NORM(specjax_norm_float32, float);
SPECJAX_NORM(specjax_norm_bfloat16, uint16_t);

XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_largest_float32, specjax::LargestOfRows,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>() /* x */
                                  .Ret<ffi::Buffer<ffi::S32>>() /* places */
                                  .Ret<ffi::Buffer<ffi::F32>>() /* tops */);

XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_lookup, specjax::Lookup,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>() /* table */
                                  .Arg<ffi::Buffer<ffi::S32>>() /* ids */
                                  .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_noise, specjax::ExponentialNoise,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>() /* keys */
                                  .Ret<ffi::Buffer<ffi::F32>>());
