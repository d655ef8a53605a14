// SPDX-License-Identifier: Apache-2.0
// libweir.so links the C interface from weir_session. This file exists because a shared library
// needs a source file.

#include "datapath/api/weir.h"
