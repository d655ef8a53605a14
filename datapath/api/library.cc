// libweir.so takes the C interface out of weir_session; this file exists because a shared library
// needs a source of its own.

#include "datapath/api/weir.h"
